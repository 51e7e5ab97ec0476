"""The CustomResourceDefinition of the RLJob, derived from the models.

Guarantees: a structural schema (no references, no unions, every object's fields named or marked as
free-form); the same bounds and rules as the Python models, with the same messages; the same defaults, but for
those of unions, which are not stored.
"""

from collections.abc import Mapping
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rljob_api.base import Model, OneOf, Rule
from rljob_api.cel_values import message_in_cel, quoted
from rljob_api.descriptions import description
from rljob_api.errors import python_names, unwrap, yaml_fields
from rljob_api.job import GROUP, KIND, VERSION, Metadata, Spec
from rljob_api.kubernetes import QUANTITY_LENGTH, holds_quantities
from rljob_api.status import Status

Schema = dict[str, Any]

_SCALARS: dict[type, Schema] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer", "format": "int64"},
    float: {"type": "number"},
}

PRINTER_COLUMNS: list[Schema] = [
    {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
    *(
        {"name": title, "type": "string", "jsonPath": f'.status.pools[?(@.name=="{pool}")].summary'}
        for title, pool in (("Trainer", "trainer"), ("Fast", "fastRollout"), ("Heavy", "heavyRollout"))
    ),
    {"name": "Busy", "type": "string", "jsonPath": ".status.training.load.summary"},
    {"name": "Step", "type": "string", "jsonPath": ".status.training.progress"},
    {"name": "Reward", "type": "number", "jsonPath": ".status.training.reward"},
    {"name": "Evaluation", "type": "string", "jsonPath": ".status.training.evaluation.summary"},
    {"name": "Reported", "type": "date", "jsonPath": ".status.training.time"},
    {"name": "Restarts", "type": "integer", "jsonPath": ".status.restarts"},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    {"name": "Cluster", "type": "string", "jsonPath": ".status.clusterName", "priority": 1},
    {"name": "Version", "type": "integer", "jsonPath": ".status.training.weightVersion", "priority": 1},
    {"name": "Staleness", "type": "number", "jsonPath": ".status.training.staleness.mean", "priority": 1},
    {"name": "Queue", "type": "integer", "jsonPath": ".status.training.queueDepth", "priority": 1},
]


def custom_resource_definition() -> Schema:
    """The whole object, ready to be written as YAML."""
    plural = f"{KIND.lower()}s"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": plural,
                "singular": KIND.lower(),
                # `kubectl get rlj`; `kubectl get rl` lists all kinds of the category.
                "shortNames": ["rlj"],
                "categories": ["rl"],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": PRINTER_COLUMNS,
                    "subresources": {
                        "status": {},
                        # `kubectl scale` and autoscalers know one number: that of the pool that changes most.
                        "scale": {
                            "specReplicasPath": ".spec.pools.fastRollout.replicas",
                            "statusReplicasPath": ".status.fastRolloutReplicas",
                            "labelSelectorPath": ".status.fastRolloutSelector",
                        },
                    },
                    "schema": {"openAPIV3Schema": _root()},
                }
            ],
        },
    }


def _root() -> Schema:
    return {
        "description": "A reinforcement-learning job.",
        "type": "object",
        # Else an object without one would pass, for rules below it are not looked at then.
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": f"Always {GROUP}/{VERSION}."},
            "kind": {"type": "string", "description": f"Always {KIND}."},
            "metadata": {"type": "object"},
            "spec": {"description": "What is asked for.", **object_schema(Spec)},
            "status": {
                "description": "What is; written by the operator and the runtime.",
                **object_schema(Status),
            },
        },
        "x-kubernetes-validations": [_name_rule()],
    }


def _name_rule() -> Schema:
    field = Metadata.model_fields["name"]
    limit = next(bound.max_length for bound in field.metadata if isinstance(bound, MaxLen))
    pattern = next(bound.pattern for bound in field.metadata if getattr(bound, "pattern", None))
    return {
        "rule": f"size(self.metadata.name) <= {limit} && self.metadata.name.matches('{pattern}')",
        "message": f"metadata.name must have at most {limit} characters: a-z first, then a-z, 0-9 and -",
    }


def object_schema(model: type[Model]) -> Schema:
    """The structural schema of a model."""
    fields = yaml_fields(model)
    schema: Schema = {
        "type": "object",
        "properties": {name: _field_schema(model, python) for name, python in python_names(model).items()},
    }
    required = [name for name, field in fields.items() if field.is_required()]
    if required:
        schema["required"] = required
    validations = [_rule(rule, model) for rule in model.all_rules()]
    validations += [_validation(change.cel, change.message, change.field) for change in model.transitions]
    if validations:
        schema["x-kubernetes-validations"] = validations
    if issubclass(model, OneOf):
        # Else a server-side apply of one member would leave another manager's beside it.
        schema["x-kubernetes-map-type"] = "atomic"
    return schema


def _rule(rule: Rule, model: type[Model]) -> Schema:
    # The plain message too: the API server falls back to it.
    words = message_in_cel(rule, model)
    said = {} if words is None else {"messageExpression": words}
    return {**_validation(rule.cel, rule.message, rule.fields[0]), **said}


def _validation(cel: str, message: str, field: str) -> Schema:
    validation = {"rule": cel, "message": message}
    if field:
        validation["fieldPath"] = f".{field}"
    return validation


def _field_schema(model: type[Model], name: str) -> Schema:
    schema: Schema = {}
    field = model.model_fields[name]
    if said := description(model, name):
        schema["description"] = " ".join(said.split())
    schema |= _in_words(_type_schema(unwrap(field.annotation), field.metadata), field) | _format(field)
    default = _stored(_default(field))
    if default is not None:
        schema["default"] = default
        if NoneType in get_args(field.annotation):
            # Otherwise the API server replaces an explicit null by the default.
            schema["nullable"] = True
    return schema


def _format(field: FieldInfo) -> Schema:
    """A text's form, where it is one that OpenAPI has a name for."""
    extra = field.json_schema_extra
    return {"format": extra["format"]} if isinstance(extra, dict) and "format" in extra else {}


def _in_words(schema: Schema, field: FieldInfo) -> Schema:
    """The schema with a rule in place of its pattern, where that has words for people. Only for texts of a
    bounded length: the API server refuses rules that might take too long."""
    words = field.json_schema_extra.get("form") if isinstance(field.json_schema_extra, dict) else None
    if not isinstance(words, str) or not {"pattern", "maxLength"} <= schema.keys():
        return schema
    rule = _validation(f"self.matches({quoted(schema['pattern'])})", f"must be {words}", "")
    told = f"must be {words.replace('%', '%%')} (found '%s')"
    # The API server shows the type of a text that breaks a rule, and not the text.
    rule["messageExpression"] = f"{quoted(told)}.format([self])"
    kept = {name: value for name, value in schema.items() if name != "pattern"}
    return {**kept, "x-kubernetes-validations": [rule]}


def default_of(field: FieldInfo) -> Any:
    """The value of an absent field in YAML terms, with all that it contains; None for none."""
    value = _default(field)
    return value.model_dump(by_alias=True, exclude_none=True) if isinstance(value, BaseModel) else value


def _default(field: FieldInfo) -> Any:
    return None if field.is_required() else field.get_default(call_default_factory=True, validated_data={})


def _stored(value: Any) -> Any:
    """A default in YAML terms, as the API server fills it in; None for none.

    Complete, because the API server checks an object's default against the object's rules as it stands; but
    without unions, for which whoever reads the object has the default: a member that was filled in would
    stand beside the one that `kubectl apply` adds later.
    """
    if isinstance(value, OneOf):
        return None
    if not isinstance(value, BaseModel):
        return value
    below = {name: _stored(getattr(value, python)) for name, python in python_names(type(value)).items()}
    return {name: kept for name, kept in below.items() if kept is not None}


def _type_schema(annotation: Any, metadata: list[Any]) -> Schema:
    origin = get_origin(annotation)
    if origin is Annotated:
        bare, *fields = get_args(annotation)
        schema = _type_schema(bare, [*metadata, *(bound for field in fields for bound in field.metadata)])
        return {**schema, **{name: value for field in fields for name, value in _format(field).items()}}
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return object_schema(annotation)
    if origin is Literal:
        values = list(get_args(annotation))
        return {**_SCALARS[type(values[0])], "enum": values}
    if origin is list:
        bounds = {_LIST_BOUNDS[key]: value for key, value in _bounds(metadata).items()}
        item = get_args(annotation)[0]
        key = getattr(item, "list_key", None)
        # Server-side apply then merges items by their key, and each keeps its owner.
        keys = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]} if key else {}
        below = _type_schema(item, [])
        if isinstance(item, type) and issubclass(item, Model) and item.__doc__:
            below |= {"description": " ".join(item.__doc__.split())}
        return {"type": "array", "items": below, **keys, **bounds}
    if holds_quantities(metadata):
        return {"type": "object", "maxProperties": 64, "additionalProperties": _QUANTITY}
    if origin is dict and get_args(annotation)[1] is Any:
        # Else the API server would drop what is in a free-form field.
        return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    if annotation in _SCALARS:
        return {**_SCALARS[annotation], **_bounds(metadata)}
    raise TypeError(f"the CRD has no form for {annotation}")


# The one form of `anyOf` that Kubernetes allows in a structural schema.
_QUANTITY: Schema = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "maxLength": QUANTITY_LENGTH,  # of the text; integers have 64 bits
    "x-kubernetes-int-or-string": True,
}
_LIST_BOUNDS: Mapping[str, str] = {"minLength": "minItems", "maxLength": "maxItems"}


def _bounds(metadata: list[Any]) -> Schema:
    """Bounds in the words of OpenAPI 3.0, where an exclusive bound is a flag beside the bound."""
    schema: Schema = {}
    for bound in metadata:
        match bound:
            case Ge(ge=value):
                schema["minimum"] = value
            case Gt(gt=value):
                schema |= {"minimum": value, "exclusiveMinimum": True}
            case Le(le=value):
                schema["maximum"] = value
            case Lt(lt=value):
                schema |= {"maximum": value, "exclusiveMaximum": True}
            case MinLen(min_length=value):
                schema["minLength"] = value
            case MaxLen(max_length=value):
                schema["maxLength"] = value
        if pattern := getattr(bound, "pattern", None):
            schema["pattern"] = pattern
    return schema
