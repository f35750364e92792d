"""Alert rules and the dashboard can be read. That their metrics exist is a test of `tests/integration`."""

from __future__ import annotations

import json
import re

import promql_parser
import yaml

from chart import ROOT

RULES = yaml.safe_load((ROOT / "deploy/prometheus/tidegate.rules.yaml").read_text())
DASHBOARD = json.loads((ROOT / "deploy/grafana/tidegate.json").read_text())


def test_every_rule_can_be_evaluated_and_tells_what_to_do():
    rules = [rule for group in RULES["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) > 10
    for rule in rules:
        promql_parser.parse(rule["expr"])
        # A sum of nothing is nothing, and so is what it is added to.
        assert not re.search(r"\)\s*\+", rule["expr"]), rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning"), rule["alert"]
        assert set(rule["annotations"]) == {"summary", "description"}, rule["alert"]
        for page in re.findall(r"docs/[\w/.-]+\.md", rule["annotations"]["description"]):
            assert (ROOT / page).exists(), page
        # A label that the expression has summed away would be shown as nothing.
        for label in re.findall(r"\$labels\.(\w+)", rule["annotations"]["description"]):
            assert re.search(rf"by \([^)]*\b{label}\b", rule["expr"]), (rule["alert"], label)


def test_every_panel_can_be_drawn():
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells
        for target in panel.get("targets", []):
            # What Grafana puts in by itself.
            promql_parser.parse(target["expr"].replace("$__rate_interval", "1m"))
            assert target["datasource"]["uid"] == "${datasource}"
            # As above: a legend of a label that was summed away is empty.
            grouped = re.findall(r"by \(([^)]*)\)", target["expr"])
            for label in re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", "")):
                kept = any(label in re.split(r",\s*", labels) for labels in grouped)
                assert kept if grouped or "sum(" in target["expr"] else label in ("instance", "job"), target
        for page in re.findall(r"docs/[\w/.-]+\.md", panel.get("description", "")):
            assert (ROOT / page).exists(), page
