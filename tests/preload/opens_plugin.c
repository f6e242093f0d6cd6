/* Opens a library that calls the MPI. Words: its path, and what it may find in the program. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const int deep = strcmp(argv[2], "deep") == 0 ? RTLD_DEEPBIND : 0;
  void* const plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL | deep);
  int (*run)(int*, char***) = NULL;
  if (plugin != NULL) *(void**)&run = dlsym(plugin, "run");
  if (run != NULL) return run(&argc, &argv);
  fprintf(stderr, "%s\n", dlerror());
  return 3;
}
