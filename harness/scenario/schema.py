"""The keys of a scenario file as a pydantic model, which also gives the JSON Schema for editors."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    WithJsonSchema,
    create_model,
    model_validator,
)

from harness import units
from harness.errors import Problem, nearest
from harness.metrics import METRICS, Metric, claimed, floors
from harness.model import LONGEST_CASE, NEAR, Cache, Says, Timing
from harness.scenario import names
from harness.scenario.documents import Document, KeyPath, shown
from harness.scenario.names import Names

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_DEFAULT = Timing()
_MOST_DEVICES = 1024


def _listed(value: object) -> object:
    return value if isinstance(value, list) else [value]


def _form(value: object) -> str | None:
    """Which of the three ways of writing shapes `value` is."""
    if isinstance(value, list | Product | Zip):
        return "<list>" if isinstance(value, list) else f"<{value.__class__.__name__.lower()}>"
    if isinstance(value, dict) and len(value) == 1 and value.keys() <= {"product", "zip"}:
        return f"<{next(iter(value))}>"
    return None


Text = Annotated[str, Field(min_length=1)]
Row = Annotated[str, Field(pattern="^[A-Z][0-9]+$")]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, le=LONGEST_CASE, allow_inf_nan=False)]
OpName = Annotated[str, AfterValidator(names.op)]
DtypeName = Annotated[str, AfterValidator(names.dtype)]
VariantName = Annotated[str, AfterValidator(names.variant)]
MeasuredName = Annotated[str, AfterValidator(names.measured)]
SymbolName = Annotated[str, AfterValidator(names.symbol)]
MetricName = Annotated[
    str, AfterValidator(names.metric), Field(json_schema_extra=lambda schema: schema.update(enum=[*claimed()]))
]
_Choice = Annotated[
    Any,
    AfterValidator(names.choice),
    WithJsonSchema({"anyOf": [{"type": kind} for kind in ("boolean", "integer", "number", "string")]}),
]
Chosen = Annotated[
    list[_Choice],
    BeforeValidator(_listed, json_schema_input_type=bool | int | float | str | list[bool | int | float | str]),
    Field(min_length=1),
]
Worlds = Annotated[
    list[Annotated[int, Field(ge=1, le=_MOST_DEVICES)]],
    BeforeValidator(_listed, json_schema_input_type=int | list[int]),
    Field(min_length=1),
]
# Sizes are checked where they get their values, so that a wrong size hides no other.
Size = Annotated[Any, WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]})]
_Sizes = Annotated[list[Size], Field(min_length=1)]
Sizes = Annotated[_Sizes, BeforeValidator(_listed, json_schema_input_type=Size | _Sizes)]


class _Keys(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Product(_Keys):
    """Every combination of the sizes."""

    product: dict[str, Sizes] = Field(min_length=1, description="Sizes of each symbol: one, or a list of them.")


class Zip(_Keys):
    """The first sizes of all lists, then the second ones, and so on. A single size is used in every shape."""

    zip: dict[str, Sizes] = Field(min_length=1, description="Sizes of each symbol: one, or lists of one length.")


class TimingKeys(_Keys):
    """How long to sample each case."""

    precision: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=_DEFAULT.precision,
        description="Stop when the 95% interval of the median is this narrow, relative to it.",
    )
    max_time: Seconds = Field(default=_DEFAULT.max_time, description="Stop sampling after this many seconds.")
    timeout: Seconds = Field(default=_DEFAULT.timeout, description="Give the case up after this many seconds in all.")


class ClaimKeys(_Keys):
    """What a text says of a variant; printed beside what was measured."""

    row: Row = Field(description="The technique's row, e.g. R2.")
    variant: VariantName = Field(description="The variant that the text speaks of.")
    metric: MetricName = Field(description="What the value is.")
    base: Annotated[dict[str, _Choice], AfterValidator(names.base)] = Field(
        default_factory=dict,
        description="Sizes and choices of the case that it is compared with, where they differ from its own, e.g. {F: "
        "0}. The variant is the same unless 'over' names another one.",
    )
    over: Annotated[str, AfterValidator(names.over)] = Field(
        default="",
        validate_default=True,
        description="The variant that it is compared with; a speed-up and traffic need one, or a base.",
    )
    says: Says = Field(
        default="better",
        description="How the figure here has to lie to the text's value, or without one to the other variant: 'better' "
        "(at least as good as the value; faster, less traffic), 'worse' (at most as good; slower, more), 'equal' (as "
        "near as 'within'). 'nothing' where the text says none of it, so that the report shows what was measured.",
    )
    within: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=NEAR, description="How far from the value counts as near, as a share of it."
    )
    value: Annotated[Positive | None, AfterValidator(names.value)] = Field(
        default=None,
        validate_default=True,
        description="In SI units: a ratio or share, B/s, s. Left out where the text gives none.",
    )
    hardware: Text = Field(description="What the text measured on.")
    where: Text = Field(default="*", description="Glob on op/dtype/shape: the cases that the claim is about.")
    text: str = Field(default="", description="The claim in words, and why the outcome here differs from it.")


class FloorKeys(_Keys):
    """Floors of a variant: what each metric must reach, in all cases or in some."""

    where: Text = Field(
        default="*",
        description="Glob on op/dtype/shape: the cases with these floors. The first entry that matches a case "
        "and has the metric counts.",
    )

    @property
    def floors(self) -> dict[str, float]:
        """The floors that were written, by metric."""
        return self.model_dump(include=self.model_fields_set - {"where"})

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.floors:
            raise names.refused("has no floor", f"allowed: {', '.join(sorted(floors()))}")
        return self


class CurveKeys(_Keys):
    """A plot over an expression, in place of plots by shape. If variants have a line each, tables are over it, too."""

    over: Text = Field(description="What the plot is over: an expression of symbols and world, e.g. T * V * U.")
    label: Text = Field(description="What the expression is, with its unit: the label of the axis.")
    by: SymbolName = Field(
        default="",
        description="A symbol: each of its sizes gets a line. Default: a line for each variant, and where it stops.",
    )
    littles_law: bool = Field(
        default=False,
        description="Draw Little's law: the expression is bytes being read on a multiprocessor at a time.",
    )


Shapes = Annotated[
    Annotated[list[dict[str, Size]], Field(min_length=1), Tag("<list>")]
    | Annotated[Product, Tag("<product>")]
    | Annotated[Zip, Tag("<zip>")],
    Discriminator(_form),
]


class ScenarioKeys(_Keys):
    """What to measure: one op over shapes, dtypes and variants."""

    title: Text = Field(description="What is measured, in a few words.")
    shows: str = Field(default="", description="What the reader learns from it.")
    source: str = Field(default="", description="The text that the techniques come from.")
    rows: list[Row] = Field(default_factory=list, description="Rows of the techniques that it covers, e.g. R1.")
    op: OpName = Field(description="The op, as 'harness list' names it.")
    shapes: Shapes = Field(
        description="A list of shapes, or {product: ...}, or {zip: ...}. A size is an integer or an expression of "
        "the other symbols, e.g. 2**27 // N. Symbols left out take the op's defaults."
    )
    choices: dict[str, Chosen] = Field(
        default_factory=dict,
        description="Values of the op's choices, one or a list each, e.g. layout: [nchw, nhwc]. Every combination of "
        "them is measured at every shape. A shape may name a choice itself. Choices left out take the op's defaults.",
    )
    world: Worlds = Field(default=[1], description="Numbers of devices that work on a case together: one, or a list.")
    dtypes: list[DtypeName] = Field(
        default_factory=list, min_length=1, description="Data types. Default: all of the op's."
    )
    variants: list[VariantName] = Field(
        default_factory=list, min_length=1, description="Variants of the op. Default: all that the device can run."
    )
    baseline: MeasuredName = Field(
        default="eager",
        description="The variant that speed-ups are over. Without 'eager' the default is the first variant.",
    )
    tags: list[Text] = Field(default_factory=list, description="Words to select scenarios by, with --tag.")
    cache: Cache = Field(default="cold", description="Whether a call finds its data in the last-level cache.")
    timing: TimingKeys = Field(
        default_factory=TimingKeys, description="When to stop sampling, and when to give a case up."
    )
    expect: dict[MeasuredName, list[FloorKeys]] = Field(default_factory=dict)
    claims: list[ClaimKeys] = Field(default_factory=list, description="What the text says was measured.")
    curve: CurveKeys | None = Field(default=None, description="A plot over an expression, in place of plots by shape.")
    plot: MetricName = Field(
        default="",
        description="The metric that plots show, and tables over a curve. Default: the operations a second where "
        "compute is the limit, else the bandwidth, else what there is. Over the world it is items a second.",
    )


_MOST_SHARE = 10.0
"""The highest floor of a share: 94 is surely meant as 94%, which is 0.94."""


def _most(metric: Metric) -> float | None:
    return _MOST_SHARE if metric.unit in (units.SHARE, units.FINE_SHARE) else None


@cache
def _models(names: tuple[str, ...]) -> tuple[type[ScenarioKeys], type[FloorKeys]]:
    """The keys of a scenario and of a floor, with a floor for each of the metrics named."""
    fields: dict[str, Any] = {
        name: (Positive, Field(default=0.0, description=f"At least: {METRICS[name].hint}.", le=_most(METRICS[name])))
        for name in names
    }
    floor = create_model("FloorKeys", __base__=FloorKeys, __doc__=FloorKeys.__doc__, **fields)
    several: Any = Annotated[list[floor], Field(min_length=1)]  # type: ignore[valid-type]
    one_or_several: Any = Annotated[several, BeforeValidator(_listed, json_schema_input_type=floor | several)]
    expect: Any = Field(
        default_factory=dict,
        description="Floors for the gate, by variant: metrics, or a list of them with a condition each, "
        "e.g. tuned: [{of_ceiling: 0.95, where: '*/N1024'}, {of_ceiling: 0.9}].",
    )
    keys = create_model(
        "ScenarioKeys",
        __base__=ScenarioKeys,
        __doc__=ScenarioKeys.__doc__,
        expect=(dict[MeasuredName, one_or_several], expect),
    )
    return keys, floor


def _current() -> tuple[type[ScenarioKeys], type[FloorKeys]]:
    """The keys with the metrics that there are now: a plug-in may have added some."""
    return _models(tuple(floors()))


# Stand-ins for required keys that are missing or wrong, so that the rest can be checked all the same.
_STAND_INS: dict[str, object] = {"title": "-", "op": "-", "shapes": [{}]}
_NESTED: dict[object, type[_Keys]] = {"timing": TimingKeys, "claims": ClaimKeys, "curve": CurveKeys}
_NOT_IN_FILE = frozenset({"<list>", "<product>", "<zip>", "[key]"})
_MUST = {
    "string_type": "must be text",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "finite_number": "must be a finite number",
    "greater_than": "must be more than {gt:g}",
    "greater_than_equal": "must be {ge:g} or more",
    "int_type": "must be an integer",
    "less_than_equal": "must be {le:g} or less",
    "less_than": "must be less than {lt:g}",
    "too_short": "must not be empty",
    "string_too_short": "must not be empty",
    "string_pattern_mismatch": "must be a capital and a number, such as R2",
    "union_tag_not_found": "must be a list of shapes, or {{product: ...}}, or {{zip: ...}}",
}


def json_schema() -> dict[str, Any]:
    """JSON Schema of a scenario file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_current()[0].model_json_schema()}


def validate(document: Document, names: Names) -> tuple[ScenarioKeys, frozenset[str], list[Problem]]:
    """(keys, wrong, problems). wrong: top-level keys that are missing or wrong, which have stand-ins in `keys`."""
    model, _ = _current()
    try:
        return model.model_validate(document.data, context=names), frozenset(), []
    except ValidationError as error:
        details = error.errors(include_url=False)
    wrong = frozenset(str(detail["loc"][0]) for detail in details)
    rest = {key: value for key, value in document.data.items() if key not in wrong}
    keys = model.model_validate(_STAND_INS | rest, context=Names(ops=["-", *names.ops]))
    return keys, wrong, [_problem(document, detail) for detail in details]


def _problem(document: Document, detail: ErrorDetails) -> Problem:
    """What pydantic found, in plain words."""
    path: KeyPath = tuple(part for part in detail["loc"] if part not in _NOT_IN_FILE)
    found, context = detail["input"], detail.get("ctx", {})
    nested = _NESTED | {"expect": _current()[1]}
    model = nested[path[0]] if len(path) > 1 and path[0] in nested else ScenarioKeys
    match detail["type"]:
        case "refused":
            message, advice = context["message"], context["advice"]
        case "missing":
            message, advice = "is missing", model.model_fields[str(path[-1])].description or ""
        case "extra_forbidden" if issubclass(model, FloorKeys) and path[-1] in METRICS:
            message, advice = f"a floor can't be of {path[-1]}", f"allowed: {', '.join(sorted(floors()))}"
        case "extra_forbidden":
            # A key of timing that stands one level too high isn't rare.
            timing = [f"timing.{key}" for key in TimingKeys.model_fields if model is ScenarioKeys]
            message, advice = f"unknown key '{path[-1]}'", nearest(str(path[-1]), [*model.model_fields, *timing])
        case "literal_error":
            message = f"{shown(found)} isn't known here"
            advice = nearest(str(found), re.findall("'([^']*)'", context["expected"]))
        case kind:
            message = f"{_MUST.get(kind, 'is wrong').format(**context)}, found {shown(found)}"
            is_share = kind == "less_than_equal" and issubclass(model, FloorKeys)
            advice = "1 is 100%" if is_share or str(found).endswith("%") else ""
    return document.problem(path, message, advice)
