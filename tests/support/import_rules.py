"""Reads imports from source, without running it, and says which of them the layout forbids.

Owns the rules of docs/architecture.md on who may import whom. It must never import what it checks.
"""

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PARTS = ("common", "leader", "worker", "engine", "cli")

# Distributions that only an engine, or a demo that plays one, may touch.
TENSOR_LIBRARIES = frozenset({"torch", "vllm", "transformers", "numpy", "safetensors"})
ETCD_CLIENT = frozenset({"blockyard.common.etcd", "grpc", "etcd3", "aetcd"})

# Loaded only by the commands that show them.
DEMOS = frozenset({"blockyard.cli.demo", "blockyard.cli.demo_light"})

# What a core may use: values and arithmetic. No clock, randomness, files, sockets, threads or event loop.
PURE = frozenset(
    {"__future__", "abc", "array", "bisect", "collections", "contextlib", "copy", "dataclasses", "enum"}
    | {"functools", "hashlib", "heapq", "itertools", "math", "msgspec", "operator", "re", "statistics"}
    | {"string", "struct", "types", "typing", "weakref"}
)
IMPURE_BUILTINS = frozenset({"open", "print", "input", "exec", "eval", "breakpoint"})


@dataclass(frozen=True)
class Import:
    """One import; `deferred` if it happens only when some function is called."""

    target: str
    line: int
    deferred: bool


@dataclass(frozen=True)
class Module:
    """One source file under the name it is imported by."""

    name: str
    path: Path
    tree: ast.Module

    @property
    def part(self) -> str:
        return self.name.split(".")[1]

    @property
    def package(self) -> str:
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]


def read_modules(root: Path) -> dict[str, Module]:
    """Every module of the five folders, by name."""
    modules = {}
    for part in PARTS:
        base = root / part
        for path in sorted(base.glob("blockyard/**/*.py")):
            steps = path.relative_to(base).with_suffix("").parts
            name = ".".join(steps[:-1] if steps[-1] == "__init__" else steps)
            modules[name] = Module(name, path, ast.parse(path.read_text(encoding="utf-8"), str(path)))
    return modules


def imports_of(module: Module) -> Iterator[Import]:
    """All imports of a module, those inside functions and those for type checkers included."""
    yield from _imports(module.tree, module, deferred=False)


def _imports(node: ast.AST, module: Module, deferred: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        for target in _targets(child, module):
            yield Import(target, child.lineno, deferred)
        inner = deferred or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from _imports(child, module, inner)


def _targets(node: ast.AST, module: Module) -> list[str]:
    """Names that a node imports. `from a import b` may mean the module a.b, so both are given."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            above = module.package.split(".")[: len(module.package.split(".")) - node.level + 1]
            base = ".".join([*above, base]) if base else ".".join(above)
        return [base, *(f"{base}.{alias.name}" for alias in node.names)]
    if isinstance(node, ast.Call) and ast.unparse(node.func) in (
        "import_module",
        "importlib.import_module",
        "__import__",
    ):
        return [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    return []


def violations(root: Path) -> list[str]:
    """One line for each breach, in the order of the files."""
    modules = read_modules(root)
    found = [
        f"{path}: blockyard is a namespace and has no __init__.py" for path in root.glob("*/blockyard/__init__.py")
    ]
    for module in modules.values():
        found += _boundary(module)
        if _in(module.name, {f"blockyard.{part}.core" for part in PARTS}):
            found += _purity(module, modules)
    return found


def _boundary(module: Module) -> Iterator[str]:
    for item in imports_of(module):
        if _in(item.target, _forbidden(module, item)):
            yield f"{module.path}:{item.line}: {module.name} must not import {item.target}"


def _forbidden(module: Module, item: Import) -> Iterable[str]:
    """What this import may not be, by the part that the module belongs to."""
    others = {f"blockyard.{part}" for part in PARTS if part not in ("common", module.part)}
    if module.part == "engine":
        blocks = _in(module.name, {"blockyard.engine.copies", "blockyard.engine.light"})
        adapter = _in(module.name, {"blockyard.engine.vllm"})
        tensors = set() if blocks or adapter else TENSOR_LIBRARIES
        return others | ETCD_CLIENT | tensors | (set() if adapter else {"vllm"})
    if module.part == "cli":
        demo = _in(module.name, DEMOS)
        # The command itself starts quickly: a role or a demo is imported when it is asked for.
        return set() if demo or item.deferred else others | TENSOR_LIBRARIES | DEMOS
    return others | TENSOR_LIBRARIES


def _purity(module: Module, modules: Mapping[str, Module]) -> Iterator[str]:
    """A core is pure if it and all that it imports, however far, import nothing but values."""
    for reached, chain in _closure(module, modules).items():
        for item in imports_of(modules[reached]):
            top = item.target.split(".")[0]
            if top != "blockyard" and top not in PURE:
                kind = "impure" if top in sys.stdlib_module_names else "foreign"
                place = f"{modules[reached].path}:{item.line}"
                yield f"{place}: {' -> '.join(chain)} imports {kind} {item.target}"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.AsyncFunctionDef | ast.Await):
            yield f"{module.path}:{node.lineno}: {module.name} is a core and waits"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_BUILTINS:
            yield f"{module.path}:{node.lineno}: {module.name} is a core and calls {node.func.id}()"


def _closure(module: Module, modules: Mapping[str, Module]) -> dict[str, list[str]]:
    """Every module loaded by importing this one, with the chain that leads there. Packages load first."""
    chains = {module.name: [module.name]}
    waiting = [module.name]
    while waiting:
        name = waiting.pop()
        for item in imports_of(modules[name]):
            steps = item.target.split(".")
            for target in (".".join(steps[:length]) for length in range(1, len(steps) + 1)):
                if target in modules and target not in chains:
                    chains[target] = [*chains[name], target]
                    waiting.append(target)
    return chains


def _in(name: str, packages: Iterable[str]) -> bool:
    """Whether a module is one of these packages or lies in one."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)
