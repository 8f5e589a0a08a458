/* What makes a library of TVM's kernels and a model's tables; the tables are in "model.inc".
 *
 * Not re-entrant: the arena and the message are the library's own. One call at a time.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))
#define ALIGNMENT 64
#define TENSOR_ARGUMENT 7 /* kTVMFFIDLTensorPtr */

/* DLPack 1.0 and TVM's calling convention, which kernels are compiled against. */
typedef struct {
  int32_t type, id;
} Device;
typedef struct {
  uint8_t code, bits;
  uint16_t lanes;
} Datatype;
typedef struct {
  void *data;
  Device device;
  int32_t ndim;
  Datatype datatype;
  int64_t *shape;
  int64_t *strides;
  uint64_t byte_offset;
} Tensor;
typedef struct {
  int32_t type;
  uint32_t padding;
  union {
    int64_t integer;
    void *pointer;
  };
} Argument;
typedef int (*Kernel)(void *self, Argument *arguments, int32_t count, Argument *result);

typedef struct {
  Kernel kernel;
  uint32_t first, count; /* of its arguments */
} Step;
typedef struct {
  uint32_t tensor;
  uint64_t bytes;
} Port;

#include "model.inc"

static char message[512];

void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t count) {
  (void)kind;
  message[0] = 0;
  for (int32_t i = 0; i < count; i++)
    strncat(message, parts[i], sizeof message - strlen(message) - 1);
}

static void *allocate(int type, int id, uint64_t bytes, int code, int bits) {
  void *memory = NULL;
  (void)type, (void)id, (void)code, (void)bits;
  return posix_memalign(&memory, ALIGNMENT, (size_t)bytes) ? NULL : memory;
}

static int release(int type, int id, void *memory) {
  (void)type, (void)id;
  free(memory);
  return 0;
}

typedef struct {
  void *sync;
  int32_t tasks;
} Parallel;

/* One task does all of the work: a device serves several models, a thread each. */
static int launch(int (*task)(int, Parallel *, void *), void *data, int tasks) {
  Parallel alone = {NULL, 1};
  (void)tasks;
  return task(0, &alone, data);
}

void *(*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int) = allocate;
int (*__TVMBackendFreeWorkspace)(int, int, void *) = release;
int (*__TVMBackendParallelLaunch)(int (*)(int, Parallel *, void *), void *, int) = launch;

EXPORTED const char *edgefleet_abi(void) { return abi; }

EXPORTED const char *edgefleet_error(void) { return message; }

EXPORTED int edgefleet_run(const void *const *in, void *const *out) {
  Argument arguments[MAX_ARGUMENTS];
  message[0] = 0;
  for (size_t i = 0; i < INPUTS; i++)
    memcpy(tensors[inputs[i].tensor].data, in[i], inputs[i].bytes);
  for (size_t i = 0; i < STEPS; i++) {
    Argument result = {0, 0, {0}};
    for (uint32_t k = 0; k < steps[i].count; k++)
      arguments[k] = (Argument){
          TENSOR_ARGUMENT, 0, {.pointer = &tensors[operands[steps[i].first + k]]}};
    if (steps[i].kernel(NULL, arguments, (int32_t)steps[i].count, &result) != 0)
      return (int)i + 1;
  }
  for (size_t i = 0; i < OUTPUTS; i++)
    memcpy(out[i], tensors[outputs[i].tensor].data, outputs[i].bytes);
  return 0;
}
