/* Runs a compiled model over samples: `runner LIBRARY INPUTS BYTES... OUTPUTS BYTES...`.
 *
 * Standard input holds the samples one after the other, of each the inputs in order; standard
 * output gets the answers likewise, each written before the next sample is read.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

typedef int (*Run)(const void *const *inputs, void *const *outputs);
typedef const char *(*Error)(void);

static void fail(const char *what, const char *why) {
  fprintf(stderr, "%s: %s\n", what, why ? why : "no reason given");
  exit(1);
}

/* Take a count and as many sizes from the arguments, and memory for each. */
static size_t blocks(char ***next, void ***memory, size_t **sizes) {
  if (**next == NULL)
    fail("arguments", "a count is missing");
  size_t count = strtoul(*(*next)++, NULL, 10);
  *memory = calloc(count + 1, sizeof **memory);
  *sizes = calloc(count + 1, sizeof **sizes);
  for (size_t i = 0; i < count; i++) {
    if (**next == NULL)
      fail("arguments", "a size is missing");
    (*sizes)[i] = strtoul(*(*next)++, NULL, 10);
    (*memory)[i] = malloc((*sizes)[i] + 1);
    if ((*memory)[i] == NULL)
      fail("memory", "not enough");
  }
  return count;
}

int main(int argc, char **argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (argc < 2)
    fail("arguments", "the library is missing");
  char **next = argv + 2;
  void **in, **out;
  size_t *in_bytes, *out_bytes;
  size_t in_count = blocks(&next, &in, &in_bytes);
  size_t out_count = blocks(&next, &out, &out_bytes);
  void *library = dlopen(argv[1], RTLD_NOW);
  if (library == NULL)
    fail("library", dlerror());
  Run run = (Run)dlsym(library, "edgefleet_run");
  Error error = (Error)dlsym(library, "edgefleet_error");
  if (run == NULL || error == NULL)
    fail("library", "it is not a compiled model");
  for (;;) {
    for (size_t i = 0; i < in_count; i++)
      if (fread(in[i], 1, in_bytes[i], stdin) != in_bytes[i])
        return ferror(stdin) ? 1 : 0;
    if (run((const void *const *)in, out) != 0)
      fail("model", error());
    for (size_t i = 0; i < out_count; i++)
      if (fwrite(out[i], 1, out_bytes[i], stdout) != out_bytes[i])
        fail("output", "it cannot be written");
    if (fflush(stdout) != 0)
      fail("output", "it cannot be written");
  }
}
