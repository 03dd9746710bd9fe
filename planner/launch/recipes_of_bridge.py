#!/usr/bin/env python3
"""Makes bridge_recipes.json: what each recipe of Megatron-Bridge sets, in Megatron's members of its Namespace.

    python3 planner/launch/recipes_of_bridge.py TREE COMMIT > planner/launch/bridge_recipes.json

TREE is a checkout of Megatron-Bridge. Its code is not run: the functions are read as syntax trees, and their assignments are
followed through calls of other functions of Megatron-Bridge. A condition that depends on more than these is skipped."""
import ast
import json
import pathlib
import sys

SOURCES = ["recipes", "perf_recipes", "training/mixed_precision.py"]
OTHERS = ("flux", "wan")  # Recipes of models that generate no text.
# Members of the configuration that import reads, by section.
MODEL = ["tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "expert_model_parallel_size",
         "expert_tensor_parallel_size", "sequence_parallel", "pipeline_model_parallel_layout", "account_for_embedding_in_pipeline_split",
         "account_for_loss_in_pipeline_split", "seq_length", "recompute_granularity", "recompute_method", "recompute_num_layers",
         "recompute_modules", "cuda_graph_impl", "cuda_graph_scope", "cross_entropy_loss_fusion", "cross_entropy_fusion_impl",
         "fine_grained_activation_offloading", "offload_modules", "cpu_offloading", "cpu_offloading_num_layers", "moe_grouped_gemm",
         "moe_permute_fusion", "moe_router_fusion", "moe_router_dtype", "moe_token_dispatcher_type", "moe_flex_dispatcher_backend",
         "moe_shared_expert_overlap", "moe_router_force_load_balancing", "mtp_num_layers", "gradient_accumulation_fusion"]
TRAIN = ["global_batch_size", "micro_batch_size"]
DDP = ["use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather", "use_megatron_fsdp", "data_parallel_sharding_strategy",
       "num_distributed_optimizer_instances"]
OPTIMIZER = ["use_precision_aware_optimizer", "main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype",
             "optimizer_cpu_offload", "optimizer_offload_fraction", "overlap_cpu_optimizer_d2h_h2d"]
PRECISION = ["fp8", "fp8_recipe", "fp8_param_gather", "fp4", "fp4_recipe", "reuse_grad_buf_for_mxfp8_param_ag"]
OVERLAP = ["tp_comm_overlap", "overlap_moe_expert_parallel_comm", "delay_wgrad_compute"]
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "uint8": "fp8"}
# Left out: values that Megatron has anyway, and what is switched off, except what the front end switches on by itself.
DEFAULTS = {"context_parallel_size": 1, "pipeline_model_parallel_size": 1, "expert_model_parallel_size": 1, "tensor_model_parallel_size": 1,
            "num_distributed_optimizer_instances": 1, "check_for_nan_in_loss_and_grad": True} | dict.fromkeys(["main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"], "fp32")
FALSE = ["sequence_parallel", "use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather", "cross_entropy_loss_fusion",
         "moe_grouped_gemm", "moe_permute_fusion", "grad_reduce_in_bf16", "check_for_nan_in_loss_and_grad"]
STAGE = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}


class Unknown(Exception):
    """A value that does not follow from the source."""


class Returned(Exception):
    pass


class Object:
    """A section of the configuration: the class or function that makes it, and its members."""

    def __init__(self, made_by, members=None):
        self.made_by, self.members = made_by, dict(members or {})


class Function:
    def __init__(self, module, node):
        self.module, self.node = module, node


class Module:
    def __init__(self, path, root):
        self.path, self.tree = path, ast.parse(path.read_text())
        self.where = str(path.relative_to(root))
        self.names, self.values = {}, {}


def load(root):
    base = root / "src/megatron/bridge"
    files = [path for source in SOURCES for path in ([base / source] if source.endswith(".py") else sorted((base / source).rglob("*.py")))]
    modules = {}
    for path in files:
        parts = path.relative_to(root / "src").with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = Module(path, base)
    for module in modules.values():
        for node in module.tree.body:
            if isinstance(node, ast.FunctionDef):
                module.names[node.name] = Function(module, node)
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    module.names[alias.asname or alias.name] = (node.module, alias.name)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                module.values[node.targets[0].id] = node.value
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                module.values[node.target.id] = node.value
    return modules


class Reader:
    def __init__(self, modules):
        self.modules, self.depth = modules, 0

    def named(self, module, name, seen=()):
        """The function or literal behind a name of a module."""
        if name in module.values:
            return self.value(module.values[name], {}, module)
        found = module.names.get(name)
        if isinstance(found, tuple):
            other = self.modules.get(found[0])
            if other is None or (found in seen):
                return Object(found[1])
            return self.named(other, found[1], (*seen, found))
        return found if found is not None else Object(name)

    def call(self, function, positional, keywords):
        if self.depth > 12:
            raise Unknown
        arguments = function.node.args
        names = [argument.arg for argument in arguments.args]
        scope = dict(zip(names, positional)) | keywords
        for name, default in zip(reversed(names), reversed(arguments.defaults)):
            scope.setdefault(name, self.value(default, {}, function.module))
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults):
            if default is not None:
                scope.setdefault(argument.arg, self.value(default, {}, function.module))
        self.depth += 1
        try:
            self.block(function.node.body, scope, function.module)
        except Returned as returned:
            return returned.args[0]
        finally:
            self.depth -= 1
        return None

    def block(self, body, scope, module):
        for node in body:
            try:
                self.statement(node, scope, module)
            except Unknown:
                if isinstance(node, ast.Return):
                    raise
                if isinstance(node, ast.Assign):  # What it sets is not known either.
                    for target in node.targets:
                        self.assign(target, Object("?"), scope, module)

    def statement(self, node, scope, module):
        if isinstance(node, ast.Return):
            raise Returned(self.value(node.value, scope, module) if node.value else None)
        if isinstance(node, ast.Assign):
            value = self.value(node.value, scope, module)
            for target in node.targets:
                self.assign(target, value, scope, module)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self.assign(node.target, self.value(node.value, scope, module), scope, module)
        elif isinstance(node, ast.Expr):
            self.value(node.value, scope, module)
        elif isinstance(node, ast.If):
            self.block(node.body if self.value(node.test, scope, module) else node.orelse, scope, module)
        elif isinstance(node, (ast.With, ast.Try)):
            self.block(node.body, scope, module)

    def assign(self, target, value, scope, module):
        if isinstance(target, ast.Name):
            scope[target.id] = value
        elif isinstance(target, ast.Attribute):
            owner = self.value(target.value, scope, module)
            if isinstance(owner, Object):
                owner.members[target.attr] = value
        elif isinstance(target, ast.Tuple) and isinstance(value, (tuple, list)) and len(target.elts) == len(value):
            for one, its in zip(target.elts, value):
                self.assign(one, its, scope, module)

    def value(self, node, scope, module):
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return scope[node.id] if node.id in scope else self.named(module, node.id)
        if isinstance(node, (ast.List, ast.Tuple)):
            return [self.value(item, scope, module) for item in node.elts]
        if isinstance(node, ast.Dict):
            return {self.hashable(self.value(key, scope, module)): self.value(its, scope, module)
                    for key, its in zip(node.keys, node.values) if key is not None}
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id == "torch":
                return DTYPES.get(node.attr, node.attr)
            owner = self.value(node.value, scope, module)
            if isinstance(owner, Object):
                return owner.members.setdefault(node.attr, Object("?"))
            raise Unknown
        if isinstance(node, ast.Subscript):
            return self.item(self.value(node.value, scope, module), self.value(node.slice, scope, module))
        if isinstance(node, ast.BinOp):
            left, right = self.known(node.left, scope, module), self.known(node.right, scope, module)
            if isinstance(node.op, ast.Add):
                return left + right
            if isinstance(node.op, ast.Mult):
                return left * right
            if isinstance(node.op, ast.FloorDiv):
                return left // right
            raise Unknown
        if isinstance(node, ast.BoolOp):
            for item in node.values:
                value = self.known(item, scope, module)
                if bool(value) != isinstance(node.op, ast.And):
                    return value
            return value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return not self.known(node.operand, scope, module)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self.known(node.operand, scope, module)
        if isinstance(node, ast.IfExp):
            return self.value(node.body if self.known(node.test, scope, module) else node.orelse, scope, module)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = self.known(node.left, scope, module), self.known(node.comparators[0], scope, module)
            compare = {ast.Eq: lambda: left == right, ast.NotEq: lambda: left != right, ast.Is: lambda: left is right,
                       ast.IsNot: lambda: left is not right, ast.In: lambda: left in right, ast.NotIn: lambda: left not in right,
                       ast.Gt: lambda: left > right, ast.GtE: lambda: left >= right, ast.Lt: lambda: left < right,
                       ast.LtE: lambda: left <= right}
            try:
                return compare[type(node.ops[0])]()
            except TypeError as error:
                raise Unknown from error
        if isinstance(node, ast.Call):
            return self.called(node, scope, module)
        if isinstance(node, ast.JoinedStr):
            return Object("?")
        raise Unknown

    @staticmethod
    def hashable(value):
        return tuple(value) if isinstance(value, list) else value

    def item(self, owner, key):
        if isinstance(owner, dict) and self.hashable(key) in owner:
            return owner[self.hashable(key)]
        if isinstance(owner, list) and isinstance(key, int) and -len(owner) <= key < len(owner):
            return owner[key]
        raise Unknown

    def known(self, node, scope, module):
        value = self.value(node, scope, module)
        if isinstance(value, Object) and value.made_by == "?":
            raise Unknown
        return value

    def called(self, node, scope, module):
        positional = [self.value(argument, scope, module) for argument in node.args if not isinstance(argument, ast.Starred)]
        keywords = {keyword.arg: self.value(keyword.value, scope, module) for keyword in node.keywords if keyword.arg}
        if isinstance(node.func, ast.Name):
            if node.func.id == "isinstance":
                if isinstance(positional[0], Object):
                    return self.unknown()
                return type(positional[0]).__name__ == ast.unparse(node.args[1])
            if node.func.id == "apply_flex_dispatcher_backend":
                if len(positional) == 2 and isinstance(positional[0], Object) and positional[1] in ("deepep", "hybridep"):
                    positional[0].members |= {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": positional[1]}
                return None
            if node.func.id == "set_cuda_graph_modules":
                if len(positional) == 2 and isinstance(positional[0], Object):
                    positional[0].members["cuda_graph_scope"] = positional[1]
                return None
            if node.func.id == "set" or node.func.id == "list":
                return positional[0] if positional else []
            if node.func.id == "getattr" and len(positional) == 3 and isinstance(positional[0], Object):
                return positional[0].members.get(positional[1], positional[2])
            if node.func.id in ("hasattr", "getattr", "int", "len", "min", "max", "any", "all"):
                return self.unknown()
            function = scope.get(node.func.id) or self.named(module, node.func.id)
            if isinstance(function, Function):
                return self.call(function, positional, keywords)
            return Object(node.func.id, keywords)
        if isinstance(node.func, ast.Attribute):
            if node.func.attr == "get":
                owner = self.value(node.func.value, scope, module)
                if isinstance(owner, dict):
                    return owner.get(self.hashable(positional[0]), positional[1] if len(positional) > 1 else None)
            if node.func.attr == "lower" and isinstance(owner := self.value(node.func.value, scope, module), str):
                return owner.lower()
            if node.func.attr == "update" and isinstance(self.value(node.func.value, scope, module), dict):
                return None
            return Object(node.func.attr, keywords)
        raise Unknown

    @staticmethod
    def unknown():
        raise Unknown


def layout_of(stages):
    """Megatron's layout string of a list of stages."""
    if isinstance(stages, str):
        return stages
    if not isinstance(stages, list) or not all(isinstance(stage, list) and all(part in STAGE for part in stage) for stage in stages):
        return None
    return "|".join("".join(STAGE[part] for part in stage) for stage in stages)


def section(owner, names):
    return {name: owner.members[name] for name in names if isinstance(owner, Object) and name in owner.members}


def members_of(cfg, reader):
    """What a configuration sets, by member of Megatron's Namespace."""
    part = lambda name: cfg.members.get(name)  # noqa: E731
    values = section(part("dataset"), ["seq_length"]) | section(part("model"), MODEL) | section(part("train"), TRAIN)
    values |= section(part("ddp"), DDP) | section(part("optimizer"), OPTIMIZER) | section(part("comm_overlap"), OVERLAP)
    if isinstance(part("model"), Object) and "virtual_pipeline_model_parallel_size" in part("model").members:
        values["num_virtual_stages_per_pipeline_rank"] = part("model").members["virtual_pipeline_model_parallel_size"]
    precision = part("mixed_precision")
    if isinstance(precision, str):
        function = reader.modules["megatron.bridge.training.mixed_precision"].names.get(precision)
        precision = reader.call(function, [], {}) if function else None
    values |= section(precision, PRECISION)
    reduced = section(precision, ["grad_reduce_in_fp32"]) or section(part("ddp"), ["grad_reduce_in_fp32"])
    if isinstance(reduced.get("grad_reduce_in_fp32"), bool):
        values["grad_reduce_in_bf16"] = not reduced["grad_reduce_in_fp32"]
    if isinstance(checked := section(part("ddp"), ["check_for_nan_in_grad"]).get("check_for_nan_in_grad"), bool):
        values["check_for_nan_in_loss_and_grad"] = checked
    values["pipeline_model_parallel_layout"] = layout_of(values.get("pipeline_model_parallel_layout"))
    if not values.get("use_megatron_fsdp"):
        values.pop("data_parallel_sharding_strategy", None)
    if values.get("moe_token_dispatcher_type") != "flex":
        values.pop("moe_flex_dispatcher_backend", None)
    if values.get("tensor_model_parallel_size", 1) == 1:
        values.pop("tp_comm_overlap", None)
    scope = values.pop("cuda_graph_scope", None)
    if values.get("cuda_graph_impl") in (None, "none"):
        values.pop("cuda_graph_impl", None)
    elif values["cuda_graph_impl"] != "full_iteration" and scope != "full":
        values["cuda_graph_modules"] = scope.split(",") if isinstance(scope, str) else scope
    if section(part("optimizer"), ["use_distributed_optimizer"]).get("use_distributed_optimizer") is True:
        values["use_distributed_optimizer"] = True  # training/config.py:2111: of both sections.
    if not values.get("recompute_granularity"):
        for name in ["recompute_modules", "recompute_method", "recompute_num_layers"]:
            values.pop(name, None)
    return {name: value for name, value in sorted(values.items()) if is_plain(value) and not is_default(name, value)}


def is_default(name, value):
    return name not in FALSE if value is False else name in DEFAULTS and value == DEFAULTS[name]


def is_plain(value):
    return isinstance(value, (bool, int, float)) or (isinstance(value, str) and value != "") or (
        isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    root, commit = pathlib.Path(sys.argv[1]), sys.argv[2]
    modules = load(root)
    reader, rows = Reader(modules), {}
    for module in modules.values():
        for name, function in module.names.items():
            if not isinstance(function, Function) or not name.endswith("_config") or name.startswith(("_", *OTHERS)):
                continue
            try:
                cfg = reader.call(function, [], {})
            except (Unknown, KeyError):
                continue
            if not isinstance(cfg, Object) or "model" not in cfg.members:
                continue
            row = {"source": f"{module.where}:{function.node.lineno}", "set": members_of(cfg, reader)}
            if isinstance(cfg.members.get("peft"), Object) and isinstance(cfg.members["peft"].members.get("dim"), int):
                row["lora_dim"] = cfg.members["peft"].members["dim"]
            # Names of scripts/performance come first (LIBRARY_RECIPE_PRECEDENCE_COLLISIONS has the exceptions).
            if name not in rows or module.where.startswith("recipes"):
                rows[name] = row
    for module in modules.values():  # Names that a module gives to another one's recipe.
        for name, original in module.names.items():
            if isinstance(original, tuple) and name.endswith("_config") and not name.startswith("_") and "set" in rows.get(original[1], {}):
                rows.setdefault(name, {"as": original[1]})
    print('{\n  "_source": ' + json.dumps(f"NVIDIA-NeMo/Megatron-Bridge at {commit}, src/megatron/bridge: made by planner/launch/recipes_of_bridge.py, "
                                          "whose head tells how") + ',\n  "rows": {')
    print(",\n".join(f"    {json.dumps(name)}: {json.dumps(row, separators=(',', ':'))}" for name, row in sorted(rows.items())))
    print("  }\n}")


if __name__ == "__main__":
    main()
