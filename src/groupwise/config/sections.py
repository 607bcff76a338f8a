"""A section of the settings: a frozen dataclass that is a mapping too, and how to read one of anybody's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from groupwise.errors import unknown_name

# Hydra writes the class to build into this key; which class that is, is decided here.
_HYDRA_KEY = "_target_"


@dataclass(frozen=True)
class Section(Mapping[str, Any]):
    """A frozen dataclass that also reads like a mapping: `c.gamma`, `c["gamma"]`, `c.get("gamma", 1.0)`, `{**c}`."""

    def __getitem__(self, key: str) -> Any:
        if key not in self.names():
            raise unknown_name(f"{type(self).__name__} field", key, self.names())
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(f.name for f in fields(cls))

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """From a dict or an OmegaConf node; an unknown key is an error that names the nearest one."""
        values = {str(key): mapping[key] for key in mapping if key != _HYDRA_KEY}
        for key in values:
            if key not in cls.names():
                raise unknown_name(f"{cls.__name__} field", key, cls.names())
        return cls(**values)


def read(config: Any, name: str, default: Any = None) -> Any:
    """A field of an AlgoConfig, of verl's own, of an OmegaConf node, of any mapping, or of None.

    An absent field, or one that is None, is the default.
    """
    if config is None:
        return default
    value = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
    return default if value is None else value
