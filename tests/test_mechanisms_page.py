"""docs/mechanisms.md: every mechanism is there, what it shows can be built, and its numbers are the ones code gives.

`python -m tests.test_mechanisms_page` writes its tables and its picture anew.
"""

from __future__ import annotations

import inspect
import re
from decimal import Decimal, localcontext
from functools import cache
from importlib.metadata import entry_points
from math import exp, log
from pathlib import Path

import pytest
import yaml

from tests.documents import ROOT, files_in
from tidegate.mechanisms import literature
from tidegate.mechanisms.mechanism import Bounds
from tidegate.mechanisms.optimal_selection import OptimalSelection
from tidegate.mechanisms.registry import GROUP
from tidegate.pipelines.plan import plan
from tidegate.pipelines.plan_show import draw_plan, short, tiny
from tidegate.transforms import make_terms
from tidegate.transforms.terms import Terms

PAGE = "docs/mechanisms.md"
TEXT = (ROOT / PAGE).read_text(encoding="utf-8")
BUILT_IN = {
    point.name: point.load() for point in entry_points(group=GROUP) if point.value.startswith("tidegate.mechanisms.")
}
SNIPPETS = {name.removesuffix(".yaml"): text for name, text in files_in(PAGE).items() if name != "base.yaml"}
SECTIONS = dict(re.findall(r"^### (\S+)\n(.*?)(?=^##|\Z)", TEXT, flags=re.DOTALL | re.MULTILINE))


@cache
def terms_of(name: str | None) -> Terms:
    base = yaml.safe_load(files_in(PAGE)["base.yaml"])
    return make_terms(**(base | (yaml.safe_load(SNIPPETS[name]) if name else {})))


def table_of(name: str) -> str:
    (found,) = re.findall(rf"<!-- table: {name} -->\n(.*?)<!-- end -->", TEXT, flags=re.DOTALL)
    return str(found)


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_built_in_mechanism_has_a_section_with_a_snippet(name: str) -> None:
    section = SECTIONS[name]
    for part in ("Publishes", "Choose it", "Parameters:", "Costs", "Private because"):
        assert f"- **{part}**" in section, part
    assert f"<!-- file: {name}.yaml -->" in section
    listed = re.search(r"- \*\*Parameters:\*\*(.*?)\n- ", section, flags=re.DOTALL)
    takes = {p.name for p in inspect.signature(BUILT_IN[name]).parameters.values() if p.kind is p.KEYWORD_ONLY}
    assert listed is not None
    assert takes <= set(re.findall(r"`(\w+)`", listed[1]))


@pytest.mark.parametrize("name", sorted(SNIPPETS))
def test_every_snippet_makes_terms_with_that_mechanism(name: str) -> None:
    terms = terms_of(name)
    used = {terms.mechanism_name(number) for number in range(len(terms.mechanisms))}
    assert name in used or (name == "weights" and terms.gate.weights)


def costs() -> str:
    lines = ["| mechanism | epsilon | delta | certain within | noise scale |", "|---|---:|---:|---:|---:|"]
    for name in SNIPPETS:
        row = plan(terms_of(name))["mechanisms"][0 if "gate" in yaml.safe_load(SNIPPETS[name]) else 1]
        unit = " units" if row["in_units"] else ""
        shown = ["-" if row[field] is None else f"{short(row[field])}{unit}" for field in ("half_width", "noise_scale")]
        lines.append(f"| `{name}` | {short(row['epsilon'])} | {tiny(row['delta'])} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def test_the_table_of_costs_is_what_the_code_gives() -> None:
    expected = costs()
    assert table_of("costs") == expected, f"the table should be\n{expected}"


def test_the_table_of_figures_is_what_the_code_gives() -> None:
    expected = literature.markdown(literature.figures())
    assert table_of("figures") == expected, f"the table should be\n{expected}"


def test_the_figures_are_the_published_ones() -> None:
    # By formulas written out once more, with the numbers that are quoted.
    said = [round(row.said, 2) for row in literature.figures()]
    thresholds = [1 + (1 + gamma) * 19 * log(10) / 0.05 for gamma in (1, 0.1, 0.01, 0)]
    assert thresholds == pytest.approx([1750.96, 963.48, 884.73, 875.98], abs=0.005)
    ranges = [20 * log(1e19), 20 * log(1e28)]
    assert ranges == pytest.approx([874.98, 1289.45], abs=0.005)
    others = [20 * log(0.5e19 + 1) - 1, *ranges, 10 * log(1e14)]
    assert said == pytest.approx([*thresholds, *others], abs=0.0051)
    assert [row.exact for row in literature.figures()] == [863, 863, 863, 802, 802, 802, 802, 315]


def test_the_exact_sparsity_is_the_smallest_that_holds() -> None:
    def none_exceeds(t: int) -> Decimal:
        with localcontext() as context:
            context.prec = 60
            a = Decimal("-0.1").exp()
            return (1 - a ** (t + 1) / (1 + a)) ** 10**12

    found = literature.exact_sparsity(0.1, 0.01, 10**12)
    assert none_exceeds(found) >= Decimal("0.99") > none_exceeds(found - 1)
    assert found == 315


@pytest.mark.parametrize("budget", [(0.05, 1e-19), (0.1, 1e-10), (1.0, 1e-5), (1.0, 1e-9), (3.0, 1e-6)], ids=str)
@pytest.mark.parametrize("chance", [1e-3, 0.5, 0.9, 0.99, 0.9999])
def test_no_mechanism_is_below_the_limit_and_the_optimal_one_is_at_it(
    budget: tuple[float, float], chance: float
) -> None:
    epsilon, delta = budget
    best = OptimalSelection(Bounds(1, 1), epsilon=epsilon, delta=delta)
    reached = next(n for n in range(1, 10**5) if best.survival(n) >= chance)
    assert reached - 1 <= literature.least_units(chance, epsilon, delta) <= reached
    formula = log(1 + chance / delta * (exp(epsilon) - 1)) / epsilon
    assert literature.least_count(chance, epsilon, delta) == pytest.approx(formula, rel=1e-12)


def test_links_of_the_page_exist() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", TEXT) if "://" not in link]
    assert "survival.svg" in links
    assert not [link for link in links if not (ROOT / PAGE).parent.joinpath(link).exists()]


def test_the_picture_can_be_made_again(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    made = tmp_path / "survival.svg"
    draw_plan(plan(terms_of(None)), made)
    there = (ROOT / "docs" / "survival.svg").read_text(encoding="utf-8")
    for picture in (made.read_text(encoding="utf-8"), there):
        assert picture.startswith("<?xml")
        # Text is drawn as shapes, after a comment that says what it is.
        for words in ("a key of 62 units appears half the time", "threshold 62", "delta 1e-9", "optimal-selection"):
            assert words in picture


def rewrite() -> None:
    """The page as the tests want it."""
    text = TEXT
    for name, table in (("costs", costs()), ("figures", literature.markdown(literature.figures()))):
        text = text.replace(f"<!-- table: {name} -->\n{table_of(name)}", f"<!-- table: {name} -->\n{table}")
    (ROOT / PAGE).write_text(text, encoding="utf-8")
    draw_plan(plan(terms_of(None)), ROOT / "docs" / "survival.svg")


if __name__ == "__main__":
    rewrite()
