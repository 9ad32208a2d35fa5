/* The functions that hand out random numbers: answered from the stream when it is active, else passed on. */
#define _GNU_SOURCE
#include "stream.h"

#include <errno.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/types.h>

#define GETRANDOM_FLAGS 7u       /* GRND_NONBLOCK | GRND_RANDOM | GRND_INSECURE; the kernel refuses any other */
#define GETENTROPY_MAX_BYTES 256 /* getentropy(3) */
#define CALLER __builtin_return_address(0)

static ssize_t answer_getrandom(void *out, size_t num_bytes, unsigned int flags) {
    if (flags & ~GETRANDOM_FLAGS) {
        errno = EINVAL;
        return -1;
    }
    detrain_fill(out, num_bytes);
    return (ssize_t)num_bytes;
}

EXPORT ssize_t getrandom(void *out, size_t num_bytes, unsigned int flags) {
    if (!detrain_answers(CALLER)) return NEXT(getrandom)(out, num_bytes, flags);
    return answer_getrandom(out, num_bytes, flags);
}

EXPORT int getentropy(void *out, size_t num_bytes) {
    if (!detrain_answers(CALLER)) return NEXT(getentropy)(out, num_bytes);
    if (num_bytes > GETENTROPY_MAX_BYTES) {
        errno = EIO;
        return -1;
    }
    detrain_fill(out, num_bytes);
    return 0;
}

/* Programs built against an old C library have no getrandom() and ask the kernel by number. All six arguments are
 * forwarded as integers, which is how libc's own syscall() reads them on every Linux ABI. */
typedef long syscall_function(long, long, long, long, long, long, long);
EXPORT long detrain_syscall(long, long, long, long, long, long, long) __asm__("syscall");

long detrain_syscall(long number, long a, long b, long c, long d, long e, long f) {
    static void *next;
    if (number == SYS_getrandom && detrain_answers(CALLER))
        return answer_getrandom((void *)a, (size_t)b, (unsigned int)c);
    return ((syscall_function *)detrain_next("syscall", &next))(number, a, b, c, d, e, f);
}

/* glibc has these from 2.36 on; older headers do not declare them, and then nobody can ask. */
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 36)
#include <stdlib.h>

static uint32_t word(void) {
    uint32_t value;
    detrain_fill(&value, sizeof value);
    return value;
}

EXPORT uint32_t arc4random(void) {
    if (!detrain_answers(CALLER)) return NEXT(arc4random)();
    return word();
}

EXPORT void arc4random_buf(void *out, size_t num_bytes) {
    if (!detrain_answers(CALLER)) {
        NEXT(arc4random_buf)(out, num_bytes);
        return;
    }
    detrain_fill(out, num_bytes);
}

EXPORT uint32_t arc4random_uniform(uint32_t bound) {
    if (!detrain_answers(CALLER)) return NEXT(arc4random_uniform)(bound);
    if (bound < 2) return 0;
    uint32_t reject_below = -bound % bound; /* 2^32 mod bound: what is left is a multiple of bound, so unbiased */
    uint32_t value;
    do value = word();
    while (value < reject_below);
    return value % bound;
}
#endif

/* std::random_device of libstdc++. It may draw with the RDRAND instruction, which no preload can see, so the method
 * itself is answered. */
EXPORT unsigned int detrain_random_device(void *) __asm__("_ZNSt13random_device9_M_getvalEv");
EXPORT unsigned int detrain_random_device_pretr1(void *) __asm__("_ZNSt13random_device16_M_getval_pretr1Ev");

/* libstdc++ is often the private dependency of an extension module, where RTLD_NEXT does not look. */
static unsigned int pass_on(void *device, const char *name, void **slot) {
    unsigned int value;
    void *next = detrain_next(name, slot);
    if (next == NULL) {
        void *library = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD);
        if (library != NULL) next = dlsym(library, name);
    }
    if (next != NULL) return ((unsigned int (*)(void *))next)(device);
    while (NEXT(getrandom)(&value, sizeof value, 0) != sizeof value) /* a static libstdc++: the kernel will do */
        continue;
    return value;
}

static unsigned int random_device_value(void *device, const void *caller, const char *name, void **slot) {
    unsigned int value;
    if (!detrain_answers(caller)) return pass_on(device, name, slot);
    detrain_fill(&value, sizeof value);
    return value;
}

unsigned int detrain_random_device(void *device) {
    static void *next;
    return random_device_value(device, CALLER, "_ZNSt13random_device9_M_getvalEv", &next);
}

unsigned int detrain_random_device_pretr1(void *device) {
    static void *next;
    return random_device_value(device, CALLER, "_ZNSt13random_device16_M_getval_pretr1Ev", &next);
}
