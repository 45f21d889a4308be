// A profiler as NVTX sees it, which prints the ranges that are pushed and popped. It refuses the payload extension if
// REFUSES is 1, as Nsight Systems up to 2024.2 does with the version that the package nvtx has.
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct attributes { char before[40]; const char *message; };  // nvtxEventAttributes_t, whose message is registered
struct callbacks { size_t size; int (*table)(int module, void ****functions, unsigned *count); };

static void *create(const char *name) { return strdup(name); }
static void *registered(void *domain, const char *text) { (void)domain; return strdup(text); }
static int push(const char *domain, const struct attributes *range) {
    printf("push %s %s\n", domain, range->message);
    return fflush(stdout);
}
static int pop(const char *domain) {
    printf("pop %s\n", domain);
    return fflush(stdout);
}

int InitializeInjectionNvtx2(const void *(*exported)(uint32_t)) {
    enum { CALLBACKS = 1, CORE2 = 5, PUSH = 4, POP = 5, REGISTER = 10, CREATE = 12 };  // numbers of nvtxTypes.h
    const struct callbacks *known = exported(CALLBACKS);
    void ***functions;
    unsigned count;
    if (!known || !known->table(CORE2, &functions, &count) || count <= CREATE) return 0;
    *functions[PUSH] = (void *)push;
    *functions[POP] = (void *)pop;
    *functions[REGISTER] = (void *)registered;
    *functions[CREATE] = (void *)create;
    return 1;
}

int InitializeInjectionNvtxExtension(void *module) { (void)module; return !REFUSES; }
