/* Runs a program that decomp wrote for the target `chip`, on float32 numbers:
   reader program.json program.weights < inputs > outputs. chip.h is the target's header. */
#include "chip.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 8 /* dimensions */

static void fail(const char *why, const char *what) {
    fprintf(stderr, "%s: %s\n", why, what);
    exit(1);
}

static char *contents(const char *path) {
    FILE *file = fopen(path, "rb");
    char *data = NULL;
    size_t size = 0, got = 1;
    if (!file) fail("cannot open", path);
    for (; got > 0; size += got) {
        data = realloc(data, size + 65537);
        got = fread(data + size, 1, 65536, file);
    }
    data[size] = '\0';
    return data;
}

/* JSON: what is in a container hangs on it as a list. */
typedef struct json {
    const char *key, *text; /* of a string or a number */
    struct json *first, *next;
} json;

static char *string(char **at) { /* from the opening quote to behind the closing one; names have no escapes here */
    char *found = ++*at;
    while (**at != '"') ++*at;
    *(*at)++ = '\0';
    return found;
}

static json *parse(char **at) {
    json *found = calloc(1, sizeof *found), **last = &found->first;
    char *key = NULL;
    *at += strspn(*at, " \n");
    if (**at == '"') return found->text = string(at), found;
    if (**at != '{' && **at != '[') { /* a number or a word; it ends where the next token begins */
        size_t length = strcspn(*at, ",]} \n");
        char *text = memcpy(calloc(length + 1, 1), *at, length);
        return found->text = text, *at += length, found;
    }
    for (char close = *(*at)++ == '{' ? '}' : ']'; *at += strspn(*at, " \n,"), **at != close;) {
        if (close == '}') key = string(at), *at += strspn(*at, ": ");
        (*last = parse(at))->key = key;
        last = &(*last)->next;
    }
    return ++*at, found;
}

static json *get(const json *object, const char *key) {
    json *found = object->first;
    while (found && strcmp(found->key, key)) found = found->next;
    return found ? found : (fail("the program lacks", key), found);
}

static json *item(const json *list, int64_t i) {
    json *found = list->first;
    while (i--) found = found->next;
    return found;
}

static size_t length(const json *list) {
    size_t found = 0;
    for (const json *each = list->first; each; each = each->next) found++;
    return found;
}

static int64_t whole(const json *number) { return strtoll(number->text, NULL, 10); }

/* Tensors: float32 numbers in the order of a contiguous array; a mask has 0 and 1. */
struct decomp_tensor {
    size_t dims;
    int64_t shape[MOST], size;
    float *data;
};

static decomp_tensor **values; /* of the graph that runs */

static decomp_tensor *new_tensor(const json *described) {
    decomp_tensor *made = calloc(1, sizeof *made);
    made->size = 1;
    for (json *size = get(described, "shape")->first; size; size = size->next)
        made->size *= made->shape[made->dims++] = whole(size);
    made->data = calloc((size_t)made->size + 1, sizeof(float));
    return made;
}

/* The number of `from` at the place `i` of `shape`, to which it is broadcast. */
static float at(const decomp_tensor *from, const decomp_tensor *shape, int64_t i) {
    int64_t place = 0, step = 1;
    for (size_t d = 0; d < shape->dims; d++, i /= shape->shape[shape->dims - d]) {
        int64_t size = d < from->dims ? from->shape[from->dims - 1 - d] : 1;
        if (size != 1) place += i % shape->shape[shape->dims - 1 - d] * step;
        step *= size;
    }
    return from->data[place];
}

/* The place in the sum of `from` over `dims` to which its place `i` is added. */
static int64_t summed(const decomp_tensor *from, const decomp_ints *dims, int64_t i) {
    int64_t place = 0, step = 1;
    for (size_t d = from->dims; d-- > 0; i /= from->shape[d]) {
        bool gone = false;
        for (size_t j = 0; j < dims->length; j++)
            gone |= dims->items[j] == (int64_t)d || dims->items[j] + (int64_t)from->dims == (int64_t)d;
        if (!gone) place += i % from->shape[d] * step, step *= from->shape[d];
    }
    return place;
}

/* Arguments by name, as the structs of the header have them. */
static decomp_tensor *tensor(const json *given, const char *name) {
    return values[whole(get(get(given, name), "value"))];
}

static decomp_ints *ints(const json *given, const char *name) {
    int64_t *items = calloc(MOST, sizeof *items);
    decomp_ints *made = calloc(1, sizeof *made);
    for (json *each = get(given, name)->first; each; each = each->next) items[made->length++] = whole(each);
    return made->items = items, made;
}

static decomp_number number(const json *given, const char *name) {
    decomp_number made = {DECOMP_IS_FLOAT, 0, strtod(get(given, name)->text, NULL), 0};
    return made;
}

#define NAME(name, op) op,
static const char *const OPS[] = {CHIP_OPS(NAME)};

static void run(const char *op, const json *given, decomp_tensor *to) {
    int which = 0;
    while (which < CHIP_OP_COUNT && strcmp(OPS[which], op)) which++;
#define EACH for (int64_t i = 0; i < to->size; i++) to->data[i] =
    switch ((chip_op)which) {
    case CHIP_OP_add_Tensor: {
        chip_add_Tensor a = {tensor(given, "self"), tensor(given, "other"), number(given, "alpha")};
        EACH at(a.self, to, i) + (float)a.alpha.real * at(a.other, to, i);
        return;
    }
    case CHIP_OP_mul_Tensor: {
        chip_mul_Tensor a = {tensor(given, "self"), tensor(given, "other")};
        EACH at(a.self, to, i) * at(a.other, to, i);
        return;
    }
    case CHIP_OP_lt_Scalar: {
        chip_lt_Scalar a = {tensor(given, "self"), number(given, "other")};
        EACH a.self->data[i] < a.other.real;
        return;
    }
    case CHIP_OP_where_self: {
        chip_where_self a = {tensor(given, "condition"), tensor(given, "self"), tensor(given, "other")};
        EACH at(a.condition, to, i) != 0 ? at(a.self, to, i) : at(a.other, to, i);
        return;
    }
    case CHIP_OP_full_default: EACH (float)number(given, "fill_value").real; return;
    case CHIP_OP_view_default: EACH tensor(given, "self")->data[i]; return;
    case CHIP_OP_sum_dim_IntList: {
        chip_sum_dim_IntList a = {tensor(given, "self"), ints(given, "dim"), false, {false, DECOMP_float32}};
        for (int64_t i = 0; i < a.self->size; i++) to->data[summed(a.self, a.dim, i)] += a.self->data[i];
        return;
    }
    default: fail("no such op here", op);
    }
}

static const json *program;
static const char *weights;

static decomp_tensor **results_of(const json *graph, decomp_tensor **inputs);

/* A composite: the graph that is its body, on its operands. get(call, "composite") has the name of its op. */
static void run_body(const json *call) {
    const json *given = get(call, "arguments"), *operands = get(given, "operands");
    decomp_tensor **inputs = calloc(length(operands) + 1, sizeof *inputs), **next = inputs;
    for (json *each = operands->first; each; each = each->next) *next++ = values[whole(get(each, "value"))];
    next = results_of(item(get(program, "graphs"), whole(get(get(given, "body"), "graph"))), inputs);
    for (json *each = get(call, "results")->first; each; each = each->next) values[whole(each)] = *next++;
}

static decomp_tensor **results_of(const json *graph, decomp_tensor **inputs) {
    const json *described = get(graph, "values"), *outputs = get(graph, "outputs");
    decomp_tensor **around = values, **results = calloc(length(outputs) + 1, sizeof *results), **next = results;
    values = calloc(length(described) + 1, sizeof *values);
    for (json *each = get(graph, "tensors")->first; each; each = each->next) {
        json *found = item(get(program, "tensors"), whole(get(each, "tensor")));
        decomp_tensor *made = values[whole(get(each, "value"))] = new_tensor(found);
        memcpy(made->data, weights + whole(get(found, "offset")), (size_t)made->size * sizeof(float));
    }
    for (json *each = get(graph, "inputs")->first; each; each = each->next)
        values[whole(get(each, "value"))] = *inputs++;
    for (json *each = get(graph, "calls")->first; each; each = each->next) {
        const char *op = get(each, "op")->text;
        int64_t value = whole(get(each, "results")->first);
        if (!strcmp(op, "higher_order.wrap")) run_body(each);
        else run(op, get(each, "arguments"), values[value] = new_tensor(item(described, value)));
    }
    for (json *each = outputs->first; each; each = each->next) *next++ = values[whole(get(each, "value"))];
    return values = around, results;
}

int main(int count, char **arguments) {
    if (count != 3) fail("usage", "reader program.json program.weights < inputs > outputs");
    char *text = contents(arguments[1]);
    program = parse(&text), weights = contents(arguments[2]);

    json *graph = item(get(program, "graphs"), 0), *described = get(graph, "inputs");
    decomp_tensor **inputs = calloc(length(described) + 1, sizeof *inputs), **next = inputs;
    for (json *each = described->first; each; each = each->next) {
        decomp_tensor *made = *next++ = new_tensor(item(get(graph, "values"), whole(get(each, "value"))));
        if (fread(made->data, sizeof(float), (size_t)made->size, stdin) != (size_t)made->size)
            fail("too few numbers for", get(each, "name")->text);
    }
    decomp_tensor **results = results_of(graph, inputs);
    for (; *results; results++) fwrite((*results)->data, sizeof(float), (size_t)(*results)->size, stdout);
    return 0;
}
