/* One launch by the driver: what launcher.c makes all launches with. */
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

enum { MOST_ARGUMENTS = 64, MOST_WORDS = 128, MOST_TENSORS = 32 };

/* CUlaunchAttribute and CUlaunchConfig of cuda.h. */
typedef struct {
  int id;
  char gap[4];
  unsigned cluster[3];
  char rest[52];
} Attribute;
typedef struct {
  unsigned grid[3], block[3], shared;
  void *stream;
  Attribute *attributes;
  unsigned attribute_count;
} Config;
enum { CLUSTER_DIMENSION = 4 };

static int (*driver_launch)(const Config *, void *function, void **arguments, void **extra);
static PyObject *recover; /* recover(status, blocks, threads, tries): makes what was missing, or raises */
static PyObject *refuse;  /* refuse(tensor): raises for a tensor with gaps */
static PyObject *s_data_ptr, *s_is_contiguous, *s_shape, *s_stride, *s_dtype, *s_get_device;

typedef struct {
  void *function;
  unsigned grid[3], block, shared, cluster;
} Shape;

static int number(PyObject *value, uint64_t *into) {
  if (!value) return -1;
  *into = PyLong_AsUnsignedLongLong(value);
  return *into == (uint64_t)-1 && PyErr_Occurred() ? -1 : 0;
}

static int address_of(PyObject *tensor, uint64_t *into) {
  PyObject *address = PyObject_CallMethodNoArgs(tensor, s_data_ptr);
  int status = number(address, into);
  Py_XDECREF(address);
  return status;
}

static void fill(Config *config, Attribute *attribute, const Shape *shape, void *stream) {
  memset(config, 0, sizeof *config);
  memcpy(config->grid, shape->grid, sizeof config->grid);
  config->block[0] = shape->block;
  config->block[1] = config->block[2] = 1;
  config->shared = shape->shared;
  config->stream = stream;
  if (!shape->cluster) return;
  memset(attribute, 0, sizeof *attribute);
  attribute->id = CLUSTER_DIMENSION;
  attribute->cluster[0] = shape->cluster;
  attribute->cluster[1] = attribute->cluster[2] = 1;
  config->attributes = attribute;
  config->attribute_count = 1;
}

/* Launches without Python's lock, since the driver waits where too much is under way. */
static int launch_shape(const Shape *shape, void *stream, void **arguments) {
  Config config;
  Attribute attribute;
  fill(&config, &attribute, shape, stream);
  for (int tries = 0;; ++tries) {
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = driver_launch(&config, shape->function, arguments, NULL);
    Py_END_ALLOW_THREADS
    if (!status) return 0;
    const unsigned *grid = shape->grid;
    PyObject *made = PyObject_CallFunction(recover, "i(III)Ii", status, grid[0], grid[1], grid[2], shape->block, tries);
    if (!made) return -1;
    Py_DECREF(made);
  }
}
