"""A config of any kind (an AlgoConfig, verl's own, an OmegaConf node, any mapping) with some fields replaced."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any


class Overlay(Mapping[str, Any]):
    """A config with some fields replaced, read by attribute, by key and by `.get` like the one beneath."""

    def __init__(self, config: Any, **changes: Any) -> None:
        self._config, self._changes = config, changes

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            # Copying and unpickling ask for such names before there is a config to look in.
            raise AttributeError(name)
        return self._changes[name] if name in self._changes else getattr(self._config, name)

    def __getitem__(self, name: str) -> Any:
        return self._changes[name] if name in self._changes else self._beneath[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._beneath)

    def __len__(self) -> int:
        return len(self._beneath)

    @property
    def _beneath(self) -> Mapping[str, Any]:
        return self._config if isinstance(self._config, Mapping) else vars(self._config)


def replace(config: Any, **changes: Any) -> Any:
    """The config with some of its fields changed; of the same class where it is a dataclass."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return dataclasses.replace(config, **changes)
    return Overlay(config, **changes)
