/* Launches of kernels, without Python's time: what launch.py and replay.py do, in C. Built by native.py, if it can be.
 *
 * launch()  one launch, whose arguments are tensors, objects of ctypes, and None
 * Memo      a function of tensors that does what its first call did: the memory that it asks for, and its launches
 *
 * Tensors are seen as Python sees them, so this is independent of torch's version. CUDA's driver is called by the
 * address of its function; no header of CUDA is needed.
 */
#include "launcher.h"

#include <stddef.h>

/* Arguments of one launch: the bytes of an object of ctypes, the address of a tensor, or 0 for None. */
static int argument(PyObject *value, unsigned char *into, Py_ssize_t room) {
  uint64_t word = 0;
  if (PyObject_CheckBuffer(value)) {
    Py_buffer bytes;
    if (PyObject_GetBuffer(value, &bytes, PyBUF_SIMPLE)) return -1;
    Py_ssize_t size = bytes.len;
    if (size <= room) memcpy(into, bytes.buf, size);
    PyBuffer_Release(&bytes);
    if (size <= room) return (int)((size + 15) / 16 * 16);
    PyErr_SetString(PyExc_ValueError, "the arguments of a kernel are too large");
    return -1;
  }
  if (value != Py_None) {
    PyObject *contiguous = PyObject_CallMethodNoArgs(value, s_is_contiguous);
    if (!contiguous) return -1;
    Py_DECREF(contiguous);
    if (contiguous != Py_True) {
      PyObject *none = PyObject_CallOneArg(refuse, value);
      Py_XDECREF(none);
      return -1;
    }
    if (address_of(value, &word)) return -1;
  }
  if (room < 16) {
    PyErr_SetString(PyExc_ValueError, "the arguments of a kernel are too large");
    return -1;
  }
  memcpy(into, &word, sizeof word);
  return 16;
}

/* launch(function, blocks, threads, shared, cluster, stream, arguments): blocks is a tuple of three. */
static PyObject *launch(PyObject *module, PyObject *args) {
  Shape shape;
  unsigned long long function, stream;
  PyObject *given;
  if (!PyArg_ParseTuple(args, "K(III)IIIKO!", &function, &shape.grid[0], &shape.grid[1], &shape.grid[2], &shape.block,
                        &shape.shared, &shape.cluster, &stream, &PyTuple_Type, &given))
    return NULL;
  shape.function = (void *)function;
  _Alignas(16) unsigned char bytes[MOST_ARGUMENTS * 16];
  void *places[MOST_ARGUMENTS];
  Py_ssize_t used = 0, count = PyTuple_GET_SIZE(given);
  if (count > MOST_ARGUMENTS) {
    PyErr_SetString(PyExc_ValueError, "a kernel has too many arguments");
    return NULL;
  }
  for (Py_ssize_t i = 0; i < count; ++i) {
    int size = argument(PyTuple_GET_ITEM(given, i), bytes + used, (Py_ssize_t)sizeof bytes - used);
    if (size < 0) return NULL;
    places[i] = bytes + used;
    used += size;
  }
  if (launch_shape(&shape, (void *)stream, places)) return NULL;
  Py_RETURN_NONE;
}

/* ---- What a call of a Memo does. */

typedef struct {
  Shape shape;
  int count;
  short words[MOST_ARGUMENTS];
} Step;

typedef struct {
  PyObject_HEAD
  PyObject *outputs;   /* tuple of (shape, strides, dtype) */
  PyObject *workspace; /* the same, or None */
  PyObject *device;    /* index */
  PyObject *name;      /* of which the calls are counted */
  int single;          /* whether the function gives its one output, not a tuple */
  int source_count, offset_count, word_count, step_count;
  short sources[MOST_TENSORS]; /* of each tensor of the launches: the argument, or behind these the output; -1: none */
  uint64_t offsets[MOST_TENSORS];
  uint64_t words[MOST_WORDS];
  Step *steps;
} Plan;

static void plan_free(Plan *self) {
  Py_XDECREF(self->outputs);
  Py_XDECREF(self->workspace);
  Py_XDECREF(self->device);
  Py_XDECREF(self->name);
  PyMem_Free(self->steps);
  Py_TYPE(self)->tp_free(self);
}

static int numbers(PyObject *list, uint64_t *into, short *shorts, int most, int *count) {
  if (!list || !PyList_Check(list) || PyList_GET_SIZE(list) > most) {
    PyErr_SetString(PyExc_ValueError, "a call has too many tensors or arguments");
    return -1;
  }
  *count = (int)PyList_GET_SIZE(list);
  for (int i = 0; i < *count; ++i) {
    PyObject *value = PyList_GET_ITEM(list, i);
    if (into) into[i] = PyLong_AsUnsignedLongLong(value);
    if (shorts) shorts[i] = (short)PyLong_AsLong(value);
  }
  return PyErr_Occurred() ? -1 : 0;
}

static int step_of(PyObject *made, Step *step) {
  unsigned long long function;
  PyObject *words;
  Shape *shape = &step->shape;
  if (!PyArg_ParseTuple(made, "K(III)IIIO", &function, &shape->grid[0], &shape->grid[1], &shape->grid[2], &shape->block,
                        &shape->shared, &shape->cluster, &words))
    return -1;
  shape->function = (void *)function;
  return numbers(words, NULL, step->words, MOST_ARGUMENTS, &step->count);
}

/* Whether each number, from `least` on, says which word or which tensor there is. */
static int within(const short *places, int count, int least, Py_ssize_t most) {
  for (int i = 0; i < count; ++i)
    if (places[i] < least || places[i] >= most) {
      PyErr_SetString(PyExc_ValueError, "there is no such word or tensor");
      return 0;
    }
  return 1;
}

/* Plan(name, arguments, outputs, single, workspace, device, sources, offsets, words, steps): arguments is how many the
 * function has, outputs is a tuple of (shape, strides, dtype). */
static PyObject *plan_new(PyTypeObject *type, PyObject *args, PyObject *options) {
  PyObject *name, *outputs, *workspace, *device, *sources, *offsets, *words, *steps;
  int single, arguments;
  if (!PyArg_ParseTuple(args, "OiO!pOOOOOO!", &name, &arguments, &PyTuple_Type, &outputs, &single, &workspace, &device,
                        &sources, &offsets, &words, &PyList_Type, &steps))
    return NULL;
  Plan *self = (Plan *)type->tp_alloc(type, 0);
  if (!self) return NULL;
  self->name = Py_NewRef(name);
  self->outputs = Py_NewRef(outputs);
  self->workspace = Py_NewRef(workspace);
  self->device = Py_NewRef(device);
  self->single = single;
  self->step_count = (int)PyList_GET_SIZE(steps);
  self->steps = PyMem_Calloc(self->step_count + 1, sizeof *self->steps);
  int wrong = !self->steps || numbers(sources, NULL, self->sources, MOST_TENSORS, &self->source_count) ||
              numbers(offsets, self->offsets, NULL, MOST_TENSORS, &self->offset_count) ||
              numbers(words, self->words, NULL, MOST_WORDS, &self->word_count);
  for (int i = 0; !wrong && i < self->step_count; ++i)
    wrong = step_of(PyList_GET_ITEM(steps, i), &self->steps[i]) ||
            !within(self->steps[i].words, self->steps[i].count, 0, self->word_count);
  wrong = wrong || !within(self->sources, self->source_count, -1, arguments + PyTuple_GET_SIZE(outputs));
  if (!wrong && self->word_count < self->source_count + self->offset_count) {
    PyErr_SetString(PyExc_ValueError, "there are fewer words than addresses");
    wrong = 1;
  }
  if (!wrong && PyTuple_GET_SIZE(outputs) <= MOST_TENSORS) return (PyObject *)self;
  if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a call has too many outputs");
  Py_DECREF(self);
  return NULL;
}

static PyTypeObject PlanType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "launcher.Plan",
    .tp_doc = "What a call does: outputs, memory besides, and launches.",
    .tp_basicsize = sizeof(Plan),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = plan_new,
    .tp_dealloc = (destructor)plan_free,
};

/* ---- Memo. */

enum { MEMO_OBJECTS = 8 };
typedef struct {
  PyObject_HEAD
  vectorcallfunc call;
  PyObject *slow;   /* slow(key, *arguments): what a call does that no plan is known for; key is None if there is none */
  PyObject *known;  /* dict of plans by key */
  PyObject *tensor, *parameter; /* types */
  PyObject *empty, *current_device, *stream;
  PyObject *counts; /* of calls, by the plan's name */
} Memo;

/* 1 for a tensor, 0 for a number, a truth or None, -1 for anything else. */
static int kind(const Memo *self, PyObject *value) {
  PyObject *type = (PyObject *)Py_TYPE(value);
  if (type == self->tensor || type == self->parameter) return 1;
  return value == Py_None || PyFloat_CheckExact(value) || PyLong_CheckExact(value) || PyBool_Check(value) ? 0 : -1;
}

/* Sizes, strides, type and device of each tensor, and all other arguments. NULL without an error: there is no key. */
static PyObject *key_of(const Memo *self, PyObject *const *args, Py_ssize_t count) {
  Py_ssize_t size = 0;
  for (Py_ssize_t i = 0; i < count; ++i) {
    int found = kind(self, args[i]);
    if (found < 0) return NULL;
    size += found ? 4 : 1;
  }
  PyObject *key = PyTuple_New(size);
  for (Py_ssize_t i = 0, at = 0; key && i < count; ++i) {
    PyObject *value = args[i];
    if (!kind(self, value)) {
      PyTuple_SET_ITEM(key, at++, Py_NewRef(value));
      continue;
    }
    PyObject *parts[4] = {PyObject_GetAttr(value, s_shape), PyObject_CallMethodNoArgs(value, s_stride),
                          PyObject_GetAttr(value, s_dtype), PyObject_CallMethodNoArgs(value, s_get_device)};
    int whole = parts[0] && parts[1] && parts[2] && parts[3];
    for (int part = 0; part < 4; ++part) {
      if (whole)
        PyTuple_SET_ITEM(key, at++, parts[part]);
      else
        Py_XDECREF(parts[part]);
    }
    if (!whole) Py_CLEAR(key);
  }
  return key;
}

static int same_device(const Memo *self, const Plan *plan) {
  PyObject *current = PyObject_CallNoArgs(self->current_device);
  int same = current ? PyObject_RichCompareBool(current, plan->device, Py_EQ) : -1;
  Py_XDECREF(current);
  return same;
}

static int count_call(const Memo *self, const Plan *plan) {
  PyObject *before = PyObject_GetItem(self->counts, plan->name), *one = PyLong_FromLong(1);
  PyObject *after = before && one ? PyNumber_Add(before, one) : NULL;
  int status = after ? PyObject_SetItem(self->counts, plan->name, after) : -1;
  Py_XDECREF(before);
  Py_XDECREF(one);
  Py_XDECREF(after);
  return status;
}

static PyObject *new_tensor(const Memo *self, PyObject *what) {
  return PyObject_Vectorcall(self->empty, &PyTuple_GET_ITEM(what, 0), (size_t)PyTuple_GET_SIZE(what), NULL);
}

static int run_steps(const Memo *self, const Plan *plan, uint64_t *words) {
  PyObject *handle = PyObject_CallOneArg(self->stream, plan->device);
  uint64_t stream;
  int status = number(handle, &stream);
  Py_XDECREF(handle);
  if (!stream) stream = 1; /* CU_STREAM_LEGACY, whatever the process takes for its default stream */
  for (int i = 0; !status && i < plan->step_count; ++i) {
    const Step *step = &plan->steps[i];
    void *places[MOST_ARGUMENTS];
    for (int k = 0; k < step->count; ++k) places[k] = &words[step->words[k]];
    status = launch_shape(&step->shape, (void *)stream, places);
  }
  return status;
}

/* The addresses of tensors with the numbers from `first` on, of which `tensors` has `count`. 1: all begin on 16 bytes;
 * 0: some don't; -1: an error. */
static int addresses(const Plan *plan, PyObject *const *tensors, Py_ssize_t first, Py_ssize_t count, uint64_t *words) {
  uint64_t begins = 0;
  for (int i = 0; i < plan->source_count; ++i) {
    Py_ssize_t place = plan->sources[i] - first;
    if (plan->sources[i] < 0 || place < 0 || place >= count) continue;
    if (address_of(tensors[place], &words[i])) return -1;
    begins |= words[i];
  }
  return begins % 16 == 0;
}

/* Memory and launches of a plan. NULL without an error: tensors don't lie as it needs them. */
static PyObject *carried_out(const Memo *self, const Plan *plan, PyObject *const *args, Py_ssize_t count) {
  uint64_t words[MOST_WORDS], begin = 0;
  memcpy(words, plan->words, sizeof *words * plan->word_count);
  int ready = same_device(self, plan);
  if (ready > 0) ready = addresses(plan, args, 0, count, words);
  if (ready <= 0) return NULL;
  Py_ssize_t made = PyTuple_GET_SIZE(plan->outputs);
  PyObject *outputs = PyTuple_New(made), *space = NULL;
  for (Py_ssize_t i = 0; outputs && i < made; ++i) {
    PyObject *output = new_tensor(self, PyTuple_GET_ITEM(plan->outputs, i));
    if (!output) Py_CLEAR(outputs);
    else PyTuple_SET_ITEM(outputs, i, output);
  }
  if (!outputs) return NULL;
  int status = addresses(plan, &PyTuple_GET_ITEM(outputs, 0), count, made, words) < 0 ? -1 : 0;
  if (!status && plan->workspace != Py_None) {
    space = new_tensor(self, plan->workspace);
    status = space ? address_of(space, &begin) : -1;
  }
  for (int i = 0; i < plan->offset_count; ++i) words[plan->source_count + i] = begin + plan->offsets[i];
  if (!status) status = count_call(self, plan);
  if (!status) status = run_steps(self, plan, words);
  Py_XDECREF(space);
  if (status) {
    Py_DECREF(outputs);
    return NULL;
  }
  if (!plan->single) return outputs;
  PyObject *only = Py_NewRef(PyTuple_GET_ITEM(outputs, 0));
  Py_DECREF(outputs);
  return only;
}

static PyObject *memo_call(PyObject *object, PyObject *const *args, size_t flags, PyObject *names) {
  Memo *self = (Memo *)object;
  Py_ssize_t count = PyVectorcall_NARGS(flags);
  if ((names && PyTuple_GET_SIZE(names)) || count > MOST_TENSORS) {
    PyErr_SetString(PyExc_TypeError, "arguments are given by place, and not so many");
    return NULL;
  }
  PyObject *key = key_of(self, args, count), *result = NULL;
  if (PyErr_Occurred()) return NULL;
  PyObject *plan = key ? PyDict_GetItemWithError(self->known, key) : NULL;
  if (plan && Py_TYPE(plan) == &PlanType) {
    Py_INCREF(plan);
    result = carried_out(self, (Plan *)plan, args, count);
    Py_DECREF(plan);
  }
  if (!result && !PyErr_Occurred()) {
    PyObject *given[MOST_TENSORS + 1] = {key ? key : Py_None};
    memcpy(given + 1, args, sizeof *args * count);
    result = PyObject_Vectorcall(self->slow, given, count + 1, NULL);
  }
  Py_XDECREF(key);
  return result;
}

static void memo_free(Memo *self) {
  PyObject **own = &self->slow;
  for (int i = 0; i < MEMO_OBJECTS; ++i) Py_XDECREF(own[i]);
  Py_TYPE(self)->tp_free(self);
}

/* Memo(slow, known, tensor, parameter, empty, current_device, stream, counts) */
static PyObject *memo_new(PyTypeObject *type, PyObject *args, PyObject *options) {
  if (PyTuple_GET_SIZE(args) != MEMO_OBJECTS || !PyDict_Check(PyTuple_GET_ITEM(args, 1))) {
    PyErr_SetString(PyExc_TypeError, "a Memo takes eight objects, of which the second one is a dict");
    return NULL;
  }
  Memo *self = (Memo *)type->tp_alloc(type, 0);
  if (!self) return NULL;
  PyObject **own = &self->slow;
  for (int i = 0; i < MEMO_OBJECTS; ++i) own[i] = Py_NewRef(PyTuple_GET_ITEM(args, i));
  self->call = memo_call;
  return (PyObject *)self;
}

static PyTypeObject MemoType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "launcher.Memo",
    .tp_doc = "A function of tensors that does what its first call did.",
    .tp_basicsize = sizeof(Memo),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Memo, call),
    .tp_call = PyVectorcall_Call,
    .tp_new = memo_new,
    .tp_dealloc = (destructor)memo_free,
};

/* begin(address of cuLaunchKernelEx, recover, refuse) */
static PyObject *begin(PyObject *module, PyObject *args) {
  unsigned long long address;
  PyObject *new_recover, *new_refuse;
  if (!PyArg_ParseTuple(args, "KOO", &address, &new_recover, &new_refuse)) return NULL;
  driver_launch = (int (*)(const Config *, void *, void **, void **))address;
  Py_XSETREF(recover, Py_NewRef(new_recover));
  Py_XSETREF(refuse, Py_NewRef(new_refuse));
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"begin", begin, METH_VARARGS, "Say how the driver launches, and what is called where it refuses."},
    {"launch", launch, METH_VARARGS, "Launch a kernel."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "launcher", "Launches without Python's time.", -1, methods};

PyMODINIT_FUNC PyInit_launcher(void) {
  struct { PyObject **name; const char *text; } names[] = {
      {&s_data_ptr, "data_ptr"}, {&s_is_contiguous, "is_contiguous"}, {&s_shape, "shape"},
      {&s_stride, "stride"},     {&s_dtype, "dtype"},                 {&s_get_device, "get_device"},
  };
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i)
    if (!(*names[i].name = PyUnicode_InternFromString(names[i].text))) return NULL;
  PyObject *module = PyModule_Create(&definition);
  if (module && (PyModule_AddType(module, &PlanType) || PyModule_AddType(module, &MemoType))) Py_CLEAR(module);
  return module;
}
