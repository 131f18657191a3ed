"""Write the C header of an exported model, which documents it, and an example program."""

from __future__ import annotations

from collections.abc import Sequence

from weft.export.interface import COMMON_ERRORS, Interface, Port
from weft.ir import dims
from weft.ir.dtypes import DType

_NOTES = {
    DType.float16: "the bits of IEEE half precision",
    DType.bfloat16: "the upper 16 bits of a float",
    DType.bool: "0 or 1",
    **dict.fromkeys((DType.int2, DType.uint2, DType.int4, DType.uint4), "one number in each byte"),
    DType.complex64: "pairs: real part, imaginary part",
    DType.complex128: "pairs: real part, imaginary part",
}


def comment_safe(text: str) -> str:
    """Escape a text for a C comment."""
    plain = "".join(character if character.isprintable() else "?" for character in text)
    return plain.replace("*/", "* /").replace("/*", "/ *").replace("\\", "/")


def write_header(interface: Interface, title: str, facts: Sequence[str], embedded: bool) -> str:
    """Return the header; `title` and the lines of `facts` describe the model."""
    name = interface.name
    guard = f"{name.upper()}_H"
    lines = [
        f"/* {comment_safe(title)}",
        " *",
        *(f" * {comment_safe(fact)}".rstrip() for fact in facts),
        " */",
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        "#include <stddef.h>",
        "#include <stdint.h>",
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        "enum {",
        *(f"    {name.upper()}_{label} = {error}, /* {text} */" for error, (label, text) in COMMON_ERRORS.items()),
        "};",
        "",
        "/* The model. Runs do not change it: several threads may share it, each with its own workspace. */",
        f"typedef struct {{ const void *weights; void *memory; }} {name}_model;",
        "",
        *_sizes_struct(interface),
        "",
        "/* Inputs: row-major, contiguous, aligned to their element type; read only. */",
        *_pointers_struct(f"{name}_inputs", interface.inputs, "const "),
        "",
        "/* Outputs: memory of the caller that overlaps neither the inputs nor the workspace. */",
        *_pointers_struct(f"{name}_outputs", interface.outputs, ""),
        "",
        "/* The number of elements of each output, and its shape. */",
        *_shapes_struct(interface),
        "",
        *_functions(name, embedded),
        "#ifdef __cplusplus",
        "}",
        "#endif",
        "",
        "#endif",
        "",
    ]
    return "\n".join(lines)


def _sizes_struct(interface: Interface) -> list[str]:
    name = interface.name
    if not interface.sizes and not interface.size_inputs:
        return [
            "/* All sizes of this model are fixed; pass NULL for sizes. */",
            f"typedef struct {{ int64_t unused; }} {name}_sizes;",
        ]
    return [
        "/* The dynamic sizes of the inputs. */",
        "typedef struct {",
        *(
            f"    int64_t {size.member}; /* {comment_safe(size.symbol.name)}: {size.low} to {size.high} */"
            for size in interface.sizes
        ),
        *(f"    {_pointer(port, 'const ', 'an input that determines sizes')}" for port in interface.size_inputs),
        f"}} {name}_sizes;",
        *(
            ["/* They must satisfy", *(f" *   {comment_safe(str(guard))}" for _, guard in interface.guards), " */"]
            if interface.guards
            else []
        ),
    ]


def _pointers_struct(kind: str, ports: Sequence[Port], constness: str) -> list[str]:
    if not ports:
        return [f"typedef struct {{ void *unused; }} {kind};"]
    members = [f"    {_pointer(port, constness, '')}" for port in ports]
    return ["typedef struct {", *members, f"}} {kind};"]


def _pointer(port: Port, constness: str, role: str) -> str:
    """Return the member that points to an input or output."""
    bits = f"the {port.dtype.bits} bits of one number in each byte" if port.dtype.is_float else ""
    encoding = _NOTES.get(port.dtype, bits if port.dtype.bits <= 8 else "")
    notes = "".join(f"; {note}" for note in (encoding, role) if note)
    name = f" ({port.value.name})" if port.value.name and port.value.name != port.member else ""
    return f"{constness}{port.c_type} *{port.member}; /* {comment_safe(f'{port.label}{name}{notes}')} */"


def _shapes_struct(interface: Interface) -> list[str]:
    lines = ["typedef struct {"]
    for port in interface.outputs:
        shape = f" int64_t shape[{len(port.shape)}];" if port.shape else ""
        lines.append(f"    struct {{ int64_t count;{shape} }} {port.member};")
    return [*lines, f"}} {interface.name}_shapes;"]


def _functions(name: str, embedded: bool) -> list[str]:
    source = "the weights in this object; `path` is ignored" if embedded else "weights from a file"
    return [
        f"/* Open the model with {source}. Returns 0 or an error. */",
        f"int {name}_open({name}_model *model, const char *path);",
        "",
        "/* Open the model with weights in memory, aligned to 64 bytes, which must outlive the model. */",
        f"int {name}_bind({name}_model *model, const void *weights, size_t length);",
        "",
        f"void {name}_close({name}_model *model);",
        "",
        "/* Returns 0 if the model accepts inputs of these sizes, else the error that a run would return. */",
        f"int {name}_check(const {name}_sizes *sizes);",
        "",
        "/* Returns the bytes of workspace that a run needs; 0 if the model does not accept these sizes. */",
        f"size_t {name}_workspace_bytes(const {name}_sizes *sizes);",
        "",
        f"int {name}_output_shapes(const {name}_sizes *sizes, {name}_shapes *shapes);",
        "",
        "/* Run the model. Returns 0 or an error. Allocates no memory; `workspace` need not be initialized. */",
        f"int {name}_run(const {name}_model *model, const {name}_sizes *sizes, const {name}_inputs *inputs,",
        f"        const {name}_outputs *outputs, void *workspace, size_t workspace_bytes);",
        "",
        "/* Run on several threads: `run` calls `blocks(work, first, last)` for ranges that cover 0..count, each",
        " * once, in any order and on any thread, and returns when all are done. The results are bit-identical.",
        " * `parallel` may be NULL. */",
        f"typedef void (*{name}_blocks)(void *work, int64_t first, int64_t last);",
        "typedef struct {",
        f"    void (*run)(void *context, int64_t count, {name}_blocks blocks, void *work);",
        "    void *context;",
        f"}} {name}_parallel;",
        f"int {name}_run_parallel(const {name}_model *model, const {name}_sizes *sizes, const {name}_inputs *inputs,",
        f"        const {name}_outputs *outputs, void *workspace, size_t workspace_bytes,",
        f"        const {name}_parallel *parallel);",
        "",
        "/* Returns the description of an error. */",
        f"const char *{name}_error_text(int error);",
        "",
    ]


def write_example(interface: Interface, embedded: bool) -> str:
    """Return a program that reads raw inputs from files, runs the model, and prints or writes its outputs."""
    name = interface.name
    sizes, inputs, outputs = interface.sizes, interface.inputs, interface.outputs
    files = [*((port, "sizes") for port in interface.size_inputs), *((port, "inputs") for port in inputs)]
    weights = 0 if embedded else 1
    arguments = [
        *([] if embedded else ["WEIGHTS"]),
        *(size.member.upper() for size in sizes),
        *(f"{port.member}.raw" for port, _ in files),
    ]
    usage = comment_safe(" ".join(arguments)).replace('"', "'")
    first_input = 1 + weights + len(sizes)
    read = [
        f"    {where}.{port.member} = ({port.c_type} *)read_file(arguments[{first_input + number}], "
        f"(size_t)({_count_elements(port, interface)}) * {port.value.itemsize});"
        for number, (port, where) in enumerate(files)
    ]
    lines = [
        f"/* Runs {name}. Arguments: the sizes, then a file of raw numbers for each input. Prints the first",
        " * elements of each output; with --write as the last argument, writes it to OUTPUT.raw. */",
        "#include <stdio.h>",
        "#include <stdlib.h>",
        "#include <string.h>",
        f'#include "{name}.h"',
        "",
        "static void *allocate(size_t bytes) {",
        "    void *memory = malloc(bytes ? bytes : 1);",
        '    if (!memory) { fputs("out of memory\\n", stderr); exit(1); }',
        "    return memory;",
        "}",
        "",
        "static void *read_file(const char *path, size_t bytes) {",
        '    FILE *file = fopen(path, "rb");',
        "    void *content = allocate(bytes);",
        "    if (!file || fread(content, 1, bytes, file) != bytes || fgetc(file) != EOF) {",
        '        fprintf(stderr, "%s: not a file of %zu bytes\\n", path, bytes);',
        "        exit(1);",
        "    }",
        "    fclose(file);",
        "    return content;",
        "}",
        "",
        "static void write_file(const char *path, const void *content, size_t bytes) {",
        '    FILE *file = fopen(path, "wb");',
        "    if (!file || fwrite(content, 1, bytes, file) != bytes || fclose(file)) {",
        '        fprintf(stderr, "%s: cannot be written\\n", path);',
        "        exit(1);",
        "    }",
        "}",
        "",
        "static void exit_on_error(int error) {",
        "    if (error) {",
        f'        fprintf(stderr, "%s\\n", {name}_error_text(error));',
        "        exit(1);",
        "    }",
        "}",
        "",
        "int main(int count, char **arguments) {",
        '    int writes = count > 1 && !strcmp(arguments[count - 1], "--write");',
        f"    if (count - writes != {1 + len(arguments)}) {{",
        f'        fprintf(stderr, "usage: %s {usage} [--write]\\n", arguments[0]);',
        "        return 2;",
        "    }",
        f"    {name}_model model;",
        f"    exit_on_error({name}_open(&model, {'NULL' if embedded else 'arguments[1]'}));",
        f"    {name}_sizes sizes = {{0}};",
        *(
            f"    sizes.{size.member} = strtoll(arguments[{1 + weights + number}], NULL, 10);"
            for number, size in enumerate(sizes)
        ),
        *read[: len(interface.size_inputs)],
        f"    exit_on_error({name}_check(&sizes));",
        f"    {name}_inputs inputs = {{0}};",
        *read[len(interface.size_inputs) :],
        f"    {name}_shapes shapes;",
        f"    exit_on_error({name}_output_shapes(&sizes, &shapes));",
        f"    {name}_outputs outputs = {{0}};",
        *(
            f"    outputs.{port.member} = ({port.c_type} *)allocate((size_t)shapes.{port.member}.count * "
            f"{port.value.itemsize});"
            for port in outputs
        ),
        f"    size_t bytes = {name}_workspace_bytes(&sizes);",
        "    void *workspace = allocate(bytes);",
        f"    exit_on_error({name}_run(&model, &sizes, &inputs, &outputs, workspace, bytes));",
        *(line for port in outputs for line in _print_output(port)),
        "    free(workspace);",
        *(f"    free((void *){where}.{port.member});" for port, where in files),
        *(f"    free(outputs.{port.member});" for port in outputs),
        f"    {name}_close(&model);",
        "    return 0;",
        "}",
        "",
    ]
    return "\n".join(lines)


def _print_output(port: Port) -> list[str]:
    member = port.member
    is_float = port.dtype in (DType.float32, DType.float64)
    shown, cast = ("%g", "double") if is_float else ("%lld", "long long")
    size = f"(size_t)shapes.{member}.count * {port.value.itemsize}"
    return [
        f'    printf("{member}: %lld elements:", (long long)shapes.{member}.count);',
        f"    for (int64_t i = 0; i < shapes.{member}.count && i < 8; i++)",
        f'        printf(" {shown}", ({cast})outputs.{member}[i]);',
        '    printf("\\n");',
        "    if (writes)",
        f'        write_file("{member}.raw", outputs.{member}, {size});',
    ]


def _count_elements(port: Port, interface: Interface) -> str:
    """Return the number of elements of an input as a C expression."""
    members = {size.symbol.name: f"sizes.{size.member}" for size in interface.sizes}
    factors = []
    for dim in port.shape:
        symbol = dims.as_symbol(dim)
        factors.append(str(dim) if symbol is None else members[symbol.name])
    return " * ".join(factors) or "1"
