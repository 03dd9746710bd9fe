#!/usr/bin/env python3
"""Makes bridge_recipes.json: what each recipe of Megatron-Bridge sets, in Megatron's members of its Namespace.

    python3 planner/launch/recipes_of_bridge.py TREE COMMIT > planner/launch/bridge_recipes.json

TREE is a checkout of Megatron-Bridge. Its code is not run: the functions are read as syntax trees, and their assignments are
followed through calls of other functions of Megatron-Bridge. Of a condition that depends on more than these no branch is
followed, and what its branches set is not known. Members of a row that are not known are listed on stderr.

A row has the members that import reads ('set', in the names of Megatron's Namespace; defaults left out), what only the run
file has a field for ('fields'), and what neither says ('unsaid'). The recipe of scripts/performance for a task, GPU and
precision at a number of GPUs that no recipe has is in 'performance'."""
import ast
import json
import pathlib
import re
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
         "moe_shared_expert_overlap", "moe_router_force_load_balancing", "mtp_num_layers", "mtp_use_repeated_layer",
         "gradient_accumulation_fusion", "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage", "cp_comm_type",
         "hierarchical_context_parallel_sizes", "microbatch_group_size_per_vp_stage", "moe_expert_capacity_factor",
         "moe_pad_expert_input_to_capacity", "moe_expert_rank_capacity_factor", "moe_paged_stash", "use_transformer_engine_op_fuser",
         "moe_mlp_glu_interleave_size", "transformer_impl", "attention_backend", "cpu_offloading_weights", "hidden_dropout",
         "attention_dropout"]
TRAIN = ["global_batch_size", "micro_batch_size"]
DDP = ["use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather", "use_megatron_fsdp", "data_parallel_sharding_strategy",
       "num_distributed_optimizer_instances", "outer_dp_sharding_strategy"]
OPTIMIZER = ["use_precision_aware_optimizer", "main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype",
             "optimizer_cpu_offload", "optimizer_offload_fraction", "overlap_cpu_optimizer_d2h_h2d", "offload_optimizer_states",
             "optimizer", "overlap_param_gather_with_optimizer_step"]
PRECISION = ["fp8", "fp8_recipe", "fp8_param_gather", "fp4", "fp4_recipe", "fp4_param_gather", "reuse_grad_buf_for_mxfp8_param_ag"]
DIST = ["use_tp_pp_dp_mapping"]
# Names of Bridge that Megatron's Namespace has otherwise.
NAMES = {"virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
         "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
         "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers"}
# Members that change the cost of a step and that no argument of Megatron-LM's parser sets, with the values that change nothing.
UNSAID = {"model": ["freeze_language_model", "freeze_vision_model", "freeze_mtp_model", "quant_recipe", "use_fused_mhc", "vision_cuda_graph_impl",
                    "gtp_weight_remat_size", "expert_gtp_weight_remat_size"],
          "ddp": ["fsdp_manual_registration"]}
NOTHING = (None, False, 0, 1, "none")
LORA_MODULES = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
OVERLAP = ["tp_comm_overlap", "overlap_moe_expert_parallel_comm", "delay_wgrad_compute"]
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "uint8": "fp8"}
# Left out: values that Megatron has anyway, and what is switched off, except what the front end switches on by itself.
DEFAULTS = {"context_parallel_size": 1, "pipeline_model_parallel_size": 1, "expert_model_parallel_size": 1, "tensor_model_parallel_size": 1,
            "num_distributed_optimizer_instances": 1, "check_for_nan_in_loss_and_grad": True, "main_grads_dtype": "fp32",
            "main_params_dtype": "fp32", "exp_avg_dtype": "fp32", "exp_avg_sq_dtype": "fp32",
            "optimizer": "adam", "transformer_impl": "transformer_engine", "attention_backend": "auto", "outer_dp_sharding_strategy": "no_shard",
            "mtp_num_layers": 0, "hidden_dropout": 0.0, "attention_dropout": 0.0, "expert_tensor_parallel_size": None}
FALSE = ["sequence_parallel", "use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather", "cross_entropy_loss_fusion",
         "moe_grouped_gemm", "moe_permute_fusion", "grad_reduce_in_bf16", "check_for_nan_in_loss_and_grad", "mtp_use_repeated_layer"]
# What a model has where its recipe sets nothing, as far as recipes ask.
MEGATRON = {"context_parallel_size": 1, "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1, "expert_model_parallel_size": 1,
            "virtual_pipeline_model_parallel_size": None, "use_transformer_engine_op_fuser": False}
PROVIDERS = ("to_megatron_provider", "get_model_config")
STAGE = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}


class Unknown(Exception):
    """A value that does not follow from the source."""


class Returned(Exception):
    pass


class Raised(Exception):
    """What the recipe raises itself."""


class Left(Exception):
    """A loop that is left (break) or goes on (continue)."""


class Object:
    """A section of the configuration: the class or function that makes it, and its members."""

    def __init__(self, made_by, members=None, model=None):
        self.made_by, self.members = made_by, dict(members or {})
        self.model = model or {}  # Sizes of the model, which a recipe reads and does not set.

    def get(self, name, otherwise=None):
        return self.members[name] if name in self.members else self.model.get(name, otherwise)


class Function:
    def __init__(self, module, node, given=None):
        self.module, self.node, self.given = module, node, given or {}


class Class:
    def __init__(self, module, node):
        self.module, self.node = module, node


class Module:
    def __init__(self, path, root):
        self.path, self.tree = path, ast.parse(path.read_text())
        self.where = str(path.relative_to(root))
        self.names, self.values = {}, {}
        for node in self.tree.body:
            if isinstance(node, ast.FunctionDef):
                self.names[node.name] = Function(self, node)
            elif isinstance(node, ast.ClassDef):
                self.names[node.name] = Class(self, node)
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    self.names[alias.asname or alias.name] = (node.module, alias.name)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.values[node.targets[0].id] = node.value
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                self.values[node.target.id] = node.value


def load(root):
    base = root / "src/megatron/bridge"
    files = [path for source in SOURCES for path in ([base / source] if source.endswith(".py") else sorted((base / source).rglob("*.py")))]
    modules = {}
    for path in files:
        parts = path.relative_to(root / "src").with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = Module(path, base)
    return modules


class Reader:
    def __init__(self, modules, root, models):
        self.modules, self.root, self.models, self.depth, self.recipe = dict(modules), root, models, 0, ""
        self.unknown_members = {}  # Members that a recipe sets to what is not known, with the recipes.
        self.skipped = {}  # Statements that are not followed, with the recipes that have them.

    def sizes_of(self, name):
        """Sizes of the built-in model of a name of Hugging Face; nothing if none has it."""
        base = name.rsplit("/", 1)[-1].lower()
        while base and base not in self.models:
            base = base.rpartition("-")[0]
        return MEGATRON | self.models.get(base, {})

    def module_named(self, name):
        """Any module of Megatron-Bridge; it is read when a name of it is used."""
        if name not in self.modules and name.startswith("megatron.bridge"):
            path = self.root / "src" / name.replace(".", "/")
            files = [path.with_suffix(".py"), path / "__init__.py"]
            found = next((file for file in files if file.is_file()), None)
            self.modules[name] = Module(found, self.root / "src/megatron/bridge") if found else None
        return self.modules.get(name)

    def named(self, module, name, seen=()):
        """The function or literal behind a name of a module."""
        if name in module.values:
            return self.value(module.values[name], {}, module)
        found = module.names.get(name)
        if isinstance(found, tuple):
            other = self.module_named(found[0])
            if other is None or (found in seen):
                return Object(found[1])
            return self.named(other, found[1], (*seen, found))
        return found if found is not None else Object(name)

    def call(self, function, positional, keywords):
        if self.depth > 12:
            raise Unknown
        arguments = function.node.args
        names = [argument.arg for argument in arguments.args]
        scope = dict(zip(names, positional)) | function.given | keywords
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

    def made(self, of, keywords):
        """An object of a class: its own defaults, under those of its bases, and what it is given."""
        members = {}
        if self.depth > 12:
            raise Unknown
        self.depth += 1
        for base in of.node.bases:
            its = self.named(of.module, base.id) if isinstance(base, ast.Name) else None
            if isinstance(its, Class):
                members |= self.made(its, {}).members
        for node in of.node.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                try:
                    value = self.value(node.value, {}, of.module)
                except Unknown:
                    value = Object("?")
                if isinstance(value, Object) and value.made_by == "field":
                    value = value.members.get("default", Object("?"))
                members[node.target.id] = value
        self.depth -= 1
        return Object(of.node.name, {name: value for name, value in members.items() if not is_unknown(value)} | keywords)

    def block(self, body, scope, module):
        for node in body:
            try:
                self.statement(node, scope, module)
            except Unknown:
                self.skipped.setdefault((module.where, node.lineno, ast.unparse(node).splitlines()[0]), set()).add(self.recipe)
                if isinstance(node, ast.Return):
                    raise
                for part in ast.walk(node):  # What it sets is not known either.
                    if isinstance(part, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
                        for target in part.targets if isinstance(part, ast.Assign) else [part.target]:
                            self.forget(target, scope, module)

    def forget(self, target, scope, module):
        for one in target.elts if isinstance(target, ast.Tuple) else [target]:
            try:
                self.assign(one, Object("?"), scope, module)
            except Unknown:
                pass

    def statement(self, node, scope, module):
        if isinstance(node, ast.Return):
            raise Returned(self.value(node.value, scope, module) if node.value else None)
        if isinstance(node, ast.Assign):
            value = self.value(node.value, scope, module)
            for target in node.targets:
                self.assign(target, value, scope, module)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self.assign(node.target, self.value(node.value, scope, module), scope, module)
        elif isinstance(node, ast.AugAssign):
            value = self.value(ast.BinOp(node.target, node.op, node.value), scope, module)
            self.assign(node.target, value, scope, module)
        elif isinstance(node, ast.Expr):
            self.value(node.value, scope, module)
        elif isinstance(node, ast.If):
            self.block(node.body if self.known(node.test, scope, module) else node.orelse, scope, module)
        elif isinstance(node, ast.For):
            for item in self.items(node.iter, scope, module):
                self.assign(node.target, item, scope, module)
                try:
                    self.block(node.body, scope, module)
                except Left as left:
                    if left.args[0]:
                        break
        elif isinstance(node, (ast.Break, ast.Continue)):
            raise Left(isinstance(node, ast.Break))
        elif isinstance(node, ast.With):
            self.block(node.body, scope, module)
        elif isinstance(node, ast.Try):
            try:
                self.block(node.body, scope, module)
            except Raised:
                self.block(node.handlers[0].body if node.handlers else [], scope, module)
        elif isinstance(node, ast.Raise):
            raise Raised(ast.unparse(node))
        elif isinstance(node, ast.Delete):
            for target in node.targets:
                owner = self.value(target.value, scope, module) if isinstance(target, ast.Attribute) else None
                if isinstance(owner, Object):
                    owner.members.pop(target.attr, None)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                module.names.setdefault(alias.asname or alias.name, (node.module, alias.name))

    def assign(self, target, value, scope, module):
        if isinstance(target, ast.Name):
            scope[target.id] = value
        elif isinstance(target, ast.Attribute):
            owner = self.value(target.value, scope, module)
            if isinstance(owner, Object):
                owner.members[target.attr] = value
                if owner.made_by == "MixedPrecisionConfig":  # Its __setattr__ keeps these the same.
                    pair = {"fp8_param": "fp8_param_gather", "fp4_param": "fp4_param_gather"}
                    owner.members |= {other: value for one, other in pair.items() if target.attr == one}
        elif isinstance(target, ast.Subscript):
            owner = self.value(target.value, scope, module)
            if isinstance(owner, dict):
                owner[self.hashable(self.value(target.slice, scope, module))] = value
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
            if isinstance(node.value, ast.Name) and node.value.id == "AttnBackend":
                return node.attr
            owner = self.value(node.value, scope, module)
            if isinstance(owner, Object):
                return self.model_or_unknown(owner, node.attr)
            raise Unknown
        if isinstance(node, ast.Subscript):
            return self.item(self.value(node.value, scope, module), self.value(node.slice, scope, module))
        if isinstance(node, ast.BinOp):
            left, right = self.known(node.left, scope, module), self.known(node.right, scope, module)
            if isinstance(node.op, ast.Add):
                return self.tried(lambda: left + right)
            if isinstance(node.op, ast.Mult):
                return self.tried(lambda: left * right)
            operations = {ast.Sub: lambda: left - right, ast.FloorDiv: lambda: left // right, ast.Div: lambda: left / right,
                          ast.Mod: lambda: left % right, ast.Pow: lambda: left**right, ast.BitOr: lambda: left | right}
            return self.tried(operations.get(type(node.op)))
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
                       ast.IsNot: lambda: left is not right, ast.In: lambda: self.hashable(left) in right,
                       ast.NotIn: lambda: self.hashable(left) not in right,
                       ast.Gt: lambda: left > right, ast.GtE: lambda: left >= right, ast.Lt: lambda: left < right,
                       ast.LtE: lambda: left <= right}
            try:
                return compare[type(node.ops[0])]()
            except TypeError as error:
                raise Unknown from error
        if isinstance(node, ast.Call):
            return self.called(node, scope, module)
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp)) and len(node.generators) == 1:
            result, inner = [], dict(scope)
            for item in self.items(node.generators[0].iter, scope, module):
                self.assign(node.generators[0].target, item, inner, module)
                if all(self.known(test, inner, module) for test in node.generators[0].ifs):
                    result.append(self.value(node.elt, inner, module))
            return result
        if isinstance(node, ast.Set):
            return [self.value(item, scope, module) for item in node.elts]
        if isinstance(node, ast.JoinedStr):
            return Object("?")
        raise Unknown

    @staticmethod
    def model_or_unknown(owner, name):
        if name in owner.model and name not in owner.members:
            return owner.model[name]
        return owner.members.setdefault(name, Object("?"))

    def items(self, node, scope, module):
        items = self.known(node, scope, module)
        if not isinstance(items, (list, tuple, range, dict, str)):
            raise Unknown
        return list(items)

    @staticmethod
    def tried(operation):
        if operation is None:
            raise Unknown
        try:
            return operation()
        except (TypeError, ZeroDivisionError, ValueError) as error:
            raise Unknown from error

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
                return self.is_a(positional[0], node.args[1])
            if node.func.id == "apply_flex_dispatcher_backend":  # training/flex_dispatcher_backend.py
                if len(positional) == 2 and isinstance(positional[0], Object) and positional[1] in ("deepep", "hybridep"):
                    positional[0].members |= {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": positional[1],
                                              "moe_shared_expert_overlap": False}
                return None
            if node.func.id == "set_cuda_graph_modules":
                if len(positional) == 2 and isinstance(positional[0], Object):
                    positional[0].members["cuda_graph_scope"] = positional[1]
                return None
            if node.func.id == "set_full_iteration_cuda_graph":
                if positional and isinstance(positional[0], Object):
                    positional[0].members |= {"cuda_graph_impl": "full_iteration", "cuda_graph_scope": []}
                return None
            if node.func.id == "partial" and positional and isinstance(positional[0], Function):
                return Function(positional[0].module, positional[0].node, positional[0].given | keywords)
            if node.func.id == "getattr" and len(positional) == 3 and isinstance(positional[0], Object):
                return positional[0].get(positional[1], positional[2])
            if node.func.id == "hasattr" and isinstance(positional[0], Object):
                return positional[1] in positional[0].members or positional[1] in positional[0].model or self.unknown()
            if node.func.id in ("hasattr", "getattr"):
                return self.unknown()
            function = scope.get(node.func.id) or self.named(module, node.func.id)
            if isinstance(function, Function):
                if function.node.name == "get_mixed_precision_config" and positional and isinstance(positional[0], str):
                    function, positional = self.precision(positional[0]), []  # Its table is filled by decorators.
                return self.call(function, positional, keywords)
            if isinstance(function, Class):
                return self.made(function, keywords)
            return self.built_in(node.func.id, positional, keywords)
        if isinstance(node.func, ast.Attribute):
            owner = self.value(node.func.value, scope, module)
            method = node.func.attr
            if isinstance(owner, dict) and method == "get":
                return owner.get(self.hashable(positional[0]), positional[1] if len(positional) > 1 else None)
            if isinstance(owner, dict) and method in ("keys", "values", "items"):
                return [list(item) if method == "items" else item for item in getattr(owner, method)()]
            if isinstance(owner, dict) and method == "update":
                return None
            if isinstance(owner, list) and method in ("append", "extend"):
                return getattr(owner, method)(positional[0])
            if isinstance(owner, list) and method == "copy":
                return list(owner)
            if isinstance(owner, str) and method in ("lower", "upper", "replace", "startswith", "endswith", "strip"):
                return self.tried(lambda: getattr(owner, method)(*positional))
            if method == "from_hf_pretrained":  # The sizes of a built-in model, on which some layouts depend.
                return Object(method, model=self.sizes_of(positional[0]) if positional and isinstance(positional[0], str) else {})
            return Object(method, keywords if method not in PROVIDERS else {}, owner.model if isinstance(owner, Object) else {})
        raise Unknown

    BUILT_IN = {"set": list, "list": list, "tuple": list, "sorted": sorted, "int": int, "float": float, "bool": bool, "str": str,
                "len": len, "min": min, "max": max, "any": any, "all": all, "sum": sum, "abs": abs, "divmod": divmod, "range": range,
                "round": round, "dict": dict}

    def built_in(self, name, positional, keywords):
        if name not in self.BUILT_IN:
            return Object(name, keywords)
        if any(isinstance(item, Object) for item in positional):
            return self.unknown()
        return self.tried(lambda: self.BUILT_IN[name](*positional))

    TYPES = {"str": str, "int": int, "bool": bool, "float": float, "list": list, "tuple": list, "dict": dict}

    def is_a(self, value, kind):
        if isinstance(kind, ast.Tuple):
            return any(self.is_a(value, item) for item in kind.elts)
        if is_unknown(value):
            return self.unknown()
        name = ast.unparse(kind).rsplit(".", 1)[-1]
        if not isinstance(value, Object):
            return name in self.TYPES and isinstance(value, self.TYPES[name])
        return value.made_by == name or (self.unknown() if name not in self.TYPES and name not in ("PEFT", "MixedPrecisionConfig") else False)

    def precision(self, name):
        """The function of a name of mixed precision."""
        module = self.modules["megatron.bridge.training.mixed_precision"]
        found = module.names.get(name.replace("-", "_"))
        return found if isinstance(found, Function) else self.unknown()

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


def is_unknown(value):
    return isinstance(value, Object) and value.made_by == "?"


def section(owner, names):
    return {name: owner.members[name] for name in names if isinstance(owner, Object) and name in owner.members}


def told_arguments():
    """Members that change the cost and that import names although it does not price them, with Megatron's defaults."""
    here = pathlib.Path(__file__).parent
    arguments = json.loads((here / "megatron_arguments.json").read_text())["arguments"]
    told = {}
    for row in json.loads((here / "not_modelled.json").read_text())["rows"]:
        for flag in row.get("flags", []):
            if "programs" not in row and flag in arguments:
                told[arguments[flag]["dest"]] = arguments[flag]["default"]
    return told


TOLD = told_arguments()
TOLD_DEFAULTS = {"ddp_bucket_size": None, "moe_hybridep_num_sms": 16, "moe_deepep_num_sms": 20, "min_offloaded_tensor_size": 1048576}


def members_of(cfg, reader):
    """What a configuration sets, by member of Megatron's Namespace."""
    part = lambda name: cfg.members.get(name)  # noqa: E731
    values = section(part("dataset"), ["seq_length"]) | section(part("model"), MODEL) | section(part("train"), TRAIN)
    values |= section(part("ddp"), DDP) | section(part("optimizer"), OPTIMIZER) | section(part("comm_overlap"), OVERLAP)
    values |= section(part("model"), ["virtual_pipeline_model_parallel_size"]) | section(part("dist"), DIST)
    for owner in ["model", "ddp", "optimizer", "comm_overlap"]:
        for name, its in section(part(owner), TOLD).items():
            if its not in (None, TOLD[name], TOLD_DEFAULTS.get(name, TOLD[name])) and not isinstance(its, Object):
                values[name] = its
    values = {NAMES.get(name, name): its for name, its in values.items()}
    precision = part("mixed_precision")
    if isinstance(precision, str):
        precision = reader.call(reader.precision(precision), [], {})
    values |= section(precision, PRECISION)
    for name, needs in {"fp8_recipe": "fp8", "fp8_param_gather": "fp8", "fp4_recipe": "fp4", "fp4_param_gather": "fp4"}.items():
        if not values.get(needs):
            values.pop(name, None)
    if section(precision, ["first_last_layers_bf16"]).get("first_last_layers_bf16") is True and values.get("fp8", values.get("fp4")):
        values["first_last_layers_bf16"] = True
    reduced = section(precision, ["grad_reduce_in_fp32"]) or section(part("ddp"), ["grad_reduce_in_fp32"])
    if isinstance(reduced.get("grad_reduce_in_fp32"), bool):
        values["grad_reduce_in_bf16"] = not reduced["grad_reduce_in_fp32"]
    if isinstance(checked := section(part("ddp"), ["check_for_nan_in_grad"]).get("check_for_nan_in_grad"), bool):
        values["check_for_nan_in_loss_and_grad"] = checked
    if isinstance(padded := section(part("ddp"), ["pad_buckets_for_high_nccl_busbw"]).get("pad_buckets_for_high_nccl_busbw"), bool):
        values["ddp_pad_buckets_for_high_nccl_busbw"] = padded
    layout = values.get("pipeline_model_parallel_layout")
    if not isinstance(layout, Object):
        values["pipeline_model_parallel_layout"] = layout_of(layout)
    if values.get("pipeline_model_parallel_layout"):
        # A layout has all stages, and Megatron takes the number of virtual ones from it.
        for name in ["decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"]:
            values.pop(name, None)
    if not values.get("use_megatron_fsdp"):
        for name in ["data_parallel_sharding_strategy", "outer_dp_sharding_strategy"]:
            values.pop(name, None)
    if values.get("tensor_model_parallel_size", 1) == 1:
        values.pop("tp_comm_overlap", None)
    if not values.get("cpu_offloading"):  # Megatron-LM's parser has the number alone.
        for name in ["cpu_offloading_num_layers", "cpu_offloading_weights"]:
            values.pop(name, None)
    if not values.get("optimizer_cpu_offload"):
        for name in ["optimizer_offload_fraction", "overlap_cpu_optimizer_d2h_h2d"]:
            values.pop(name, None)
    scope = values.pop("cuda_graph_scope", None)
    if values.get("cuda_graph_impl") in (None, "none"):
        values.pop("cuda_graph_impl", None)
    elif values["cuda_graph_impl"] != "full_iteration" and scope != "full":
        values["cuda_graph_modules"] = scope.split(",") if isinstance(scope, str) else scope
    if section(part("optimizer"), ["use_distributed_optimizer"]).get("use_distributed_optimizer") is True:
        values["use_distributed_optimizer"] = True  # training/config.py:2111: of both sections.
    if section(part("optimizer"), ["overlap_param_gather"]).get("overlap_param_gather") is True:
        values["overlap_param_gather"] = True  # Likewise, :2125.
    overlap = part("comm_overlap")
    if isinstance(overlap, Object):
        if values.get("use_distributed_optimizer") is True:  # training/comm_overlap.py:570: where not said otherwise, on.
            for name in ["overlap_grad_reduce", "overlap_param_gather", "overlap_param_gather_with_optimizer_step"]:
                its = overlap.members.get(name)
                values[name] = its if isinstance(its, bool) else name != "overlap_param_gather_with_optimizer_step"
    if values.get("overlap_param_gather") is not True:  # Then no gather is left for the optimizer's step to overlap.
        values.pop("overlap_param_gather_with_optimizer_step", None)
    if str(values.get("optimizer")).startswith("dist_"):
        # training/optim.py:109: "dist" in the name is the layer-wise distributed optimizer, which Megatron-LM since 0.18
        # takes for Muon with this switch.
        values["use_distributed_optimizer"] = True
    if not values.get("recompute_granularity"):
        for name in ["recompute_modules", "recompute_method", "recompute_num_layers"]:
            values.pop(name, None)
    for name, its in values.items():
        if is_unknown(its):
            reader.unknown_members.setdefault(name, set()).add(reader.recipe)
    return {name: value for name, value in sorted(values.items()) if is_plain(value) and not is_default(name, value)}


def fields_of(cfg, precision_of):
    """Fields of the run file that no argument of Megatron-LM's parser sets."""
    fields = {}
    if precision_of("fp8_dot_product_attention") is True and (precision_of("fp8") or precision_of("fp4")):
        fields["fp8_attention"] = True
    modules = section(cfg.members.get("peft"), ["target_modules"]).get("target_modules")
    if isinstance(modules, list) and modules and all(name in LORA_MODULES for name in modules):
        fields["lora"] = {"target_modules": modules}
    return fields


def unsaid_of(cfg, precision_of):
    """What changes the cost of a step and neither an argument nor a field says."""
    unsaid = []
    for owner, names in UNSAID.items():
        for name, value in section(cfg.members.get(owner), names).items():
            if (name == "quant_recipe" or not is_unknown(value)) and not any(value is nothing or value == nothing for nothing in NOTHING):
                unsaid.append(name)
    modules = section(cfg.members.get("peft"), ["target_modules"]).get("target_modules")
    if isinstance(modules, list) and not all(name in LORA_MODULES for name in modules):
        unsaid.append("peft.target_modules")
    return unsaid


def is_default(name, value):
    return name not in FALSE if value is False else name in DEFAULTS and value == DEFAULTS[name]


def is_plain(value):
    return isinstance(value, (bool, int, float)) or (isinstance(value, str) and value != "") or (
        isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value))


def built_in_models():
    """Layers of the built-in models, by name."""
    models = {}
    for path in (pathlib.Path(__file__).parent.parent / "models/data").glob("*.json"):
        row = json.loads(path.read_text())
        sizes = {"num_layers": row.get("num_hidden_layers"), "mtp_num_layers": row.get("num_nextn_predict_layers")}
        models[path.stem] = {name: value for name, value in sizes.items() if isinstance(value, int)}
    return models


def performance_recipes(root, names):
    """The recipe that scripts/performance takes at a number of GPUs that no recipe has (utils/utils.py:67, :461)."""
    module = ast.parse((root / "scripts/performance/utils/utils.py").read_text())
    table = next(node.value for node in module.body
                 if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_DEFAULT_GPU_COUNT_OVERRIDES")
    chosen = {"_".join(part for part in key if part): gpus for key, gpus in ast.literal_eval(table).items()}
    found = {}
    for name in names:
        if match := re.fullmatch(r"(\w+_(?:pretrain|sft|peft))_(\d+)gpu_(\w+)_config", name):
            found.setdefault(f"{match[1]}_{match[3]}", {})[int(match[2])] = name
    return {key: by_gpus[chosen.get(key, max(by_gpus))] for key, by_gpus in sorted(found.items())}


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    root, commit = pathlib.Path(sys.argv[1]), sys.argv[2]
    modules = load(root)
    reader, rows, keys = Reader(modules, root, built_in_models()), {}, {}
    for module in list(modules.values()):
        for name, function in list(module.names.items()):
            if not isinstance(function, Function) or not name.endswith("_config") or name.startswith(("_", *OTHERS)):
                continue
            reader.recipe = name
            try:
                cfg = reader.call(function, [], {})
            except (Unknown, Raised, KeyError, AttributeError) as error:
                print(f"not read: {module.where}:{function.node.lineno} {name}: {type(error).__name__} {error}", file=sys.stderr)
                continue
            if not isinstance(cfg, Object) or "model" not in cfg.members:
                continue
            row = {"source": f"{module.where}:{function.node.lineno}", "set": members_of(cfg, reader)}
            precision = cfg.members.get("mixed_precision")
            if isinstance(precision, str):
                precision = reader.call(reader.precision(precision), [], {})
            precision_of = lambda member, of=precision: section(of, [member]).get(member)  # noqa: E731
            for key, value in [("fields", fields_of(cfg, precision_of)), ("unsaid", unsaid_of(cfg, precision_of))]:
                if value:
                    row[key] = value
            if isinstance(cfg.members.get("peft"), Object) and isinstance(cfg.members["peft"].members.get("dim"), int):
                row["lora_dim"] = cfg.members["peft"].members["dim"]
            # A name of both is scripts/performance's (scripts/training/recipe_metadata.py:50); its aliases are the library's.
            keys[function.module.where, name] = name
            if name in rows and rows[name]["source"].startswith("perf_recipes"):
                keys[function.module.where, name] = f"recipes.{name}"
            elif name in rows:
                library = rows.pop(name)
                rows[f"recipes.{name}"] = library
                keys[library["source"].rsplit(":", 1)[0], name] = f"recipes.{name}"
            rows[keys[function.module.where, name]] = row
    for module in modules.values():  # Names that a module gives to another one's recipe.
        for name, original in module.names.items():
            if not isinstance(original, tuple) or not name.endswith("_config") or name.startswith("_"):
                continue
            function = reader.named(module, name)
            if isinstance(function, Function) and (key := keys.get((function.module.where, function.node.name))):
                rows.setdefault(name, {"as": key})
    performance = performance_recipes(root, [name for name, row in rows.items() if row.get("source", "").startswith("perf_recipes")])
    for (where, line, statement), recipes in sorted(reader.skipped.items()):
        print(f"not followed: {where}:{line} {statement} ({len(recipes)} recipes)", file=sys.stderr)
    for member, recipes in sorted(reader.unknown_members.items()):
        print(f"not known: {member} ({len(recipes)} recipes: {', '.join(sorted(recipes)[:3])})", file=sys.stderr)
    print('{\n  "_source": ' + json.dumps(f"NVIDIA-NeMo/Megatron-Bridge at {commit}, src/megatron/bridge: made by planner/launch/recipes_of_bridge.py, "
                                          "whose head tells how") + ',\n  "performance": {')
    print(",\n".join(f"    {json.dumps(key)}: {json.dumps(name)}" for key, name in performance.items()))
    print('  },\n  "rows": {')
    print(",\n".join(f"    {json.dumps(name)}: {json.dumps(row, separators=(',', ':'))}" for name, row in sorted(rows.items())))
    print("  }\n}")


if __name__ == "__main__":
    main()
