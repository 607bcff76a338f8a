"""`key=value` on the command line to a typed `RunConfig`. An unknown key names the nearest one; verl's names
are understood."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from groupwise.config import RunConfig, Section
from groupwise.errors import BadValueError, UnknownNameError
from groupwise.verl_names import translate


def read_overrides(
    arguments: Iterable[str], base: Mapping[str, Any] | None = None, file: Path | None = None
) -> tuple[RunConfig, list[str]]:
    """The settings, and one line for every name of verl's that was translated.

    base: a nested dict to start from. file: YAML whose settings come before the arguments.
    """
    given = {} if file is None else _flat(load_config(file))
    known = leaf_types(RunConfig)
    values, notes = translate(given | dict(_split(argument) for argument in arguments), known)
    nested: dict[str, Any] = _copy(base or {})
    for key, value in values.items():
        if key not in known and not _is_inside_a_mapping(key, known):
            raise _unknown_key(key, known)
        *sections, name = key.split(".")
        place = nested
        for section in sections:
            place[section] = place.get(section) or {}
            place = place[section]
        place[name] = value
    return build(RunConfig, nested), notes


def load_config(path: Path) -> dict[str, Any]:
    """A nested dict from a YAML file; nothing in it is executed."""
    try:
        container = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except (OSError, ValueError, AttributeError, RecursionError, YAMLError, OmegaConfBaseException) as error:
        # AttributeError: the YAML library's own, at a tag whose value does not fit it.
        raise BadValueError(f"{path} cannot be read as settings: {error}") from error
    if not isinstance(container, dict):
        raise BadValueError(f"{path} is not a mapping of settings")
    return typing.cast("dict[str, Any]", container)


def dump_config(config: RunConfig) -> str:
    """The resolved settings as YAML, every field named."""
    return OmegaConf.to_yaml(OmegaConf.create(as_dict(config)))


def as_dict(section: Section) -> dict[str, Any]:
    """Plain dicts, lists and numbers."""
    return {name: _plain(section[name]) for name in section}


def build(section: type[Section], values: Mapping[str, Any], prefix: str = "") -> Any:
    """A section from a nested mapping, every value checked against the type of its field."""
    hints = typing.get_type_hints(section)
    chosen: dict[str, Any] = {}
    for name, value in values.items():
        key = prefix + str(name)
        if name not in hints:
            raise _unknown_key(key, {prefix + known: Any for known in hints})
        inner = _section_in(hints[name])
        is_nested = inner is not None and isinstance(value, Mapping)
        chosen[name] = build(inner, value, f"{key}.") if is_nested and inner else coerce(key, value, hints[name])
    if section is RunConfig:
        chosen.setdefault("algorithm", RunConfig().algorithm)
    elif prefix == "algorithm.":
        chosen.setdefault("adv_estimator", RunConfig().algorithm.adv_estimator)
    return section(**chosen)


def leaf_types(section: type[Section], prefix: str = "") -> dict[str, Any]:
    """Every settable key with the type of its value."""
    leaves: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(section).items():
        inner = _section_in(hint)
        leaves |= leaf_types(inner, f"{prefix}{name}.") if inner else {prefix + name: hint}
    return leaves


def coerce(key: str, value: Any, hint: Any) -> Any:
    """The value as the type of its field, or an error that names key, value and type. Nothing is rounded or guessed."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and types.NoneType in typing.get_args(hint):
            return None
        hint = next(option for option in typing.get_args(hint) if option is not types.NoneType)
        origin = typing.get_origin(hint)
    if origin is tuple:
        item = typing.get_args(hint)[0]
        items = value if isinstance(value, list | tuple) else [value]
        return tuple(coerce(key, one, item) for one in items)
    if origin is not None:
        return value if isinstance(value, Mapping) else _refuse(key, value, "a mapping")
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is str and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return value if type(value) is hint else _refuse(key, value, f"of type {hint.__name__}")


def _refuse(key: str, value: Any, wanted: str) -> Any:
    raise BadValueError(f"{key}={value!r} is {type(value).__name__}, but {key} must be {wanted}")


def _split(argument: str) -> tuple[str, Any]:
    key, equals, _ = argument.partition("=")
    if not equals or not key:
        raise BadValueError(
            f"{argument!r} is not of the form key=value; write for example trainer.total_training_steps=50"
        )
    try:
        parsed = OmegaConf.to_container(OmegaConf.from_dotlist([argument]))
    except (OmegaConfBaseException, YAMLError) as error:
        raise BadValueError(f"{argument!r} cannot be read: {error}") from error
    for part in key.split("."):
        parsed = typing.cast("dict[str, Any]", parsed)[part]
    return key, parsed


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"rollout": {"n": 8}} -> {"rollout.n": 8}; a setting that is itself a mapping stays one."""
    leaves = leaf_types(RunConfig)
    flat: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value and key not in leaves:
            flat |= _flat(value, f"{key}.")
        elif value or key in leaves or not any(leaf.startswith(f"{key}.") for leaf in leaves):
            flat[key] = value
        # What is left is an empty section, as `filter_groups: null` in a run's config.yaml: it sets nothing.
    return flat


def _is_inside_a_mapping(key: str, known: Mapping[str, Any]) -> bool:
    """`algorithm.rollout_correction.rollout_is`: a setting that is a mapping, given entry by entry."""
    outer = key.rpartition(".")[0]
    hint = known.get(outer)
    return any(typing.get_origin(kind) is Mapping for kind in (hint, *typing.get_args(hint)))


def _unknown_key(key: str, known: Mapping[str, Any]) -> UnknownNameError:
    # The last part of a key is what people mistype; a key under the wrong section is found by it too.
    last = key.rsplit(".", 1)[-1]
    by_name = [other for other in known if other.rsplit(".", 1)[-1] == last]
    nearest = (by_name or get_close_matches(key, known, n=1, cutoff=0.0) or [""])[0]
    return UnknownNameError(f"unknown setting {key!r}; the nearest is {nearest!r}")


def _section_in(hint: Any) -> type[Section] | None:
    options = typing.get_args(hint) or (hint,)
    return next((o for o in options if isinstance(o, type) and issubclass(o, Section)), None)


def _plain(value: Any) -> Any:
    if isinstance(value, Section):
        return as_dict(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _copy(nested: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in nested.items()}


def differences(old: Section, new: Section, prefix: str = "") -> list[str]:
    """`key: old -> new` for every setting that differs."""
    found = []
    for field in dataclasses.fields(old):
        before, after = old[field.name], new[field.name]
        if isinstance(before, Section) and isinstance(after, Section):
            found += differences(before, after, f"{prefix}{field.name}.")
        elif before != after:
            found.append(f"{prefix}{field.name}: {before!r} -> {after!r}")
    return found


def refuse_changes(saved: Mapping[str, Any], config: RunConfig) -> None:
    """Raise BadValueError where a checkpoint was written under other settings. The folder may have moved since."""
    before: RunConfig = build(RunConfig, saved)
    trainer = dataclasses.replace(before.trainer, run_dir=config.trainer.run_dir)
    if changed := differences(dataclasses.replace(before, trainer=trainer), config):
        raise BadValueError(
            f"config.yaml differs from the settings the checkpoint was written under: {'; '.join(changed)}; "
            "put them back, or start a new run"
        )
