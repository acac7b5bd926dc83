"""The built-in facts, files of a user merged over them, and look-up by name.

A facts file is YAML with any of the sections below. An entry of a name that exists changes the
fields it names and leaves the others; ``like: NAME`` starts a new one from another entry::

    accelerators:
      H100: {memory_gib: 93.1}
      H20: {like: H100, tflops: {bfloat16: 148}, bandwidth_gb_per_s: 4000, source: datasheet}
    links:
      our-fabric: {gb_per_s: 25, efficiency: 0.8, latency_us: 20, source: measured}
    prices:
      H20: {our-zone: {on_demand: 2.1, spot: null, date: 2026-11, source: contract}}
    cold_starts:
      our-nodes: {like: warm_node, disk_gb_per_s: 3, source: measured}
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from importlib.resources import as_file, files
from typing import Any, TypeVar

from pydantic import ValidationError

from rlhfless.errors import UserError
from rlhfless.spec_file import read_mapping, user_error
from simulator.hardware.facts import Accelerator, ColdStart, Fact, Link, Price

BUILT_IN = ("accelerators.yaml", "links.yaml", "prices.yaml", "cold_starts.yaml")
SECTIONS = ("accelerators", "links", "prices", "cold_starts")
ANY_ZONE = "any"
"""Zone of prices for which no nearer one is known."""

F = TypeVar("F", bound=Fact)
Raw = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Catalog:
    """All facts, by name. Look-ups raise ``UserError`` with the nearest name."""

    accelerators: Mapping[str, Accelerator]
    links: Mapping[str, Link]
    prices: Mapping[str, Mapping[str, Price]]
    """By accelerator, then zone."""
    cold_starts: Mapping[str, ColdStart]

    def accelerator(self, name: str, param: str | None = None) -> Accelerator:
        return self.accelerators[self.accelerator_name(name, param)]

    def accelerator_name(self, name: str, param: str | None = None) -> str:
        """The name of an accelerator in this catalog, whatever case or alias it was given by."""
        by_any_name = {
            alias.lower(): known
            for known, accelerator in self.accelerators.items()
            for alias in (*accelerator.aliases, known)
        }
        if name.lower() not in by_any_name:
            raise unknown("accelerator", name, self.accelerators, param, by_any_name)
        return by_any_name[name.lower()]

    def link(self, name: str, param: str | None = None) -> Link:
        return _found(self.links, "link", name, param)

    def cold_start(self, name: str, param: str | None = None) -> ColdStart:
        return _found(self.cold_starts, "cold start", name, param)

    def price(self, accelerator: str, zone: str = ANY_ZONE) -> Price | None:
        """What one accelerator costs in a zone, else in any; None where nothing is known."""
        zones = self.prices.get(self.accelerator_name(accelerator), {})
        return zones.get(zone) or zones.get(ANY_ZONE)


def load_catalog(paths: Iterable[str] = ()) -> Catalog:
    """The built-in facts with the facts files at ``paths`` merged over them, in order.

    Raises ``UserError`` that names file, entry and field, and where it can the right name.
    """
    merged: Raw = {section: {} for section in SECTIONS}
    for name in BUILT_IN:
        with as_file(files("simulator.hardware") / name) as path:
            _merge(merged, _read(str(path)), name)
    for given in paths:
        _merge(merged, _read(given), given)
    catalog = Catalog(
        accelerators=_entries(Accelerator, merged, "accelerators"),
        links=_entries(Link, merged, "links"),
        prices={
            accelerator: _entries(Price, {accelerator: zones}, accelerator, "prices.")
            for accelerator, zones in merged["prices"].items()
        },
        cold_starts=_entries(ColdStart, merged, "cold_starts"),
    )
    _check_names(catalog)
    return catalog


def unknown(
    kind: str,
    name: str,
    known: Iterable[str],
    param: str | None = None,
    aliases: Mapping[str, str] | None = None,
) -> UserError:
    """The error for a ``name`` that is not ``known``, with the nearest one that is."""
    names = sorted(known)
    by_lower = {**{each.lower(): each for each in names}, **(aliases or {})}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    hint = f"did you mean {by_lower[close[0]]}?" if close else f"known: {', '.join(names)}"
    where = f"{param}: " if param else ""
    return UserError(f"{where}there is no {kind} {name}; {hint}", param=param)


def _read(path: str) -> dict[str, Any]:
    raw = read_mapping(path, "facts file", ", ".join(SECTIONS))
    for section, entries in raw.items():
        if section not in SECTIONS:
            raise unknown("section", str(section), SECTIONS, path)
        if not isinstance(entries, dict):
            raise UserError(f"{path}: {section} must map names to facts", param=section)
        for name, fields in entries.items():
            if not isinstance(fields, dict):
                raise UserError(f"{path}: {section}.{name} must be a mapping", param=section)
    return raw


def _merge(into: Raw, raw: dict[str, Any], source: str) -> None:
    for section, entries in raw.items():
        known = into[section]
        for name, fields in entries.items():
            name = str(name)
            fields = dict(fields)
            like = fields.pop("like", None)
            if like is not None:
                if like not in known:
                    raise unknown("entry", str(like), known, f"{source}: {section}.{name}.like")
                known[name] = deepcopy(known[like])
                known[name].pop("aliases", None)
            known[name] = _over(known.get(name, {}), fields)


def _over(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """``new`` over ``old``, section by section."""
    merged = dict(old)
    for key, value in new.items():
        before = merged.get(key)
        both = isinstance(before, dict) and isinstance(value, dict)
        merged[str(key)] = _over(before, value) if both else value  # type: ignore[arg-type]
    return merged


def _entries(model: type[F], raw: Raw, section: str, prefix: str = "") -> dict[str, F]:
    checked = {}
    for name, fields in raw[section].items():
        try:
            checked[name] = model.model_validate(fields)
        except ValidationError as error:
            found = user_error(error, model, "entry")
            at = f"{prefix}{section}.{name}"
            lines = "\n".join(f"{at}.{line}" for line in found.detail.splitlines())
            raise UserError(lines, param=f"{at}.{found.param}") from None
    return checked


def _check_names(catalog: Catalog) -> None:
    for name, accelerator in catalog.accelerators.items():
        for field in ("link", "host_link", "network"):
            catalog.link(getattr(accelerator, field), f"accelerators.{name}.{field}")
    for name in catalog.prices:
        if name not in catalog.accelerators:
            raise unknown("accelerator", name, catalog.accelerators, f"prices.{name}")


def _found(known: Mapping[str, F], kind: str, name: str, param: str | None) -> F:
    if name not in known:
        raise unknown(kind, name, known, param)
    return known[name]
