"""Write scenarios/schema.json, which editors complete and check scenarios with. Run it after a change of the keys."""

import json
from pathlib import Path

from harness.ops import Catalogue
from harness.scenario import json_schema

TARGET = Path(__file__).parent.parent / "scenarios" / "schema.json"

if __name__ == "__main__":
    Catalogue()  # floors and claims may be of metrics that ops declare
    TARGET.write_text(json.dumps(json_schema(), indent=2) + "\n", encoding="utf-8")
