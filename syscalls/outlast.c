/* A signal that is sent to a whole process group, or to all processes of a job, is the main process's to answer: it takes a checkpoint at the
 * next batch, and needs its loader's workers for that. They outlast it: SIGTERM waits until the main process has ended, SIGUSR2 asks
 * nothing of them. What the main process itself sends ends a worker at once. */
#define _GNU_SOURCE
#include "stream.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

static struct sigaction terminates, asks; /* what was there before ours */
static pid_t parent, main_process;        /* the same, unless the parent only makes processes for the other */

/* In a worker of MAIN. Called again, it comes before whatever handler of SIGTERM has been installed meanwhile. Returns 1. */
EXPORT int detrain_outlast(int main);

static void pass_on(struct sigaction *to, int number, siginfo_t *info, void *context) {
    if (to->sa_handler == SIG_IGN) return;
    if (to->sa_handler == SIG_DFL) {
        sigaction(number, to, NULL);
        raise(number); /* comes when our handler has returned */
    } else if (to->sa_flags & SA_SIGINFO) {
        to->sa_sigaction(number, info, context);
    } else {
        to->sa_handler(number);
    }
}

static void on_terminate(int number, siginfo_t *info, void *context) {
    int before = errno;
    int is_meant = info->si_pid == parent || info->si_pid == main_process || getppid() != parent;
    if (!is_meant) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        is_meant = getppid() != parent; /* it has ended just now, and nobody will tell */
    }
    if (is_meant) pass_on(&terminates, number, info, context);
    errno = before;
}

static void on_asking(int number, siginfo_t *info, void *context) { (void)number, (void)info, (void)context; }

typedef void action(int, siginfo_t *, void *);

static int is_in_force(int number, action *ours) {
    struct sigaction now;
    return sigaction(number, NULL, &now) == 0 && (now.sa_flags & SA_SIGINFO) && now.sa_sigaction == ours;
}

static void install(int number, action *ours, struct sigaction *before) {
    struct sigaction with = {.sa_sigaction = ours, .sa_flags = SA_SIGINFO | SA_ONSTACK}, now;
    sigemptyset(&with.sa_mask);
    if (is_in_force(number, ours) || sigaction(number, NULL, &now) != 0) return;
    /* Python's own handler only makes a note, and is called when a read has been broken off. */
    with.sa_flags |= now.sa_handler == SIG_DFL ? SA_RESTART : now.sa_flags & SA_RESTART;
    sigaction(number, &with, before);
}

/* What a worker forks is no worker. */
static void leave_in_child(void) {
    if (is_in_force(SIGTERM, on_terminate)) sigaction(SIGTERM, &terminates, NULL);
    if (is_in_force(SIGUSR2, on_asking)) sigaction(SIGUSR2, &asks, NULL);
}

int detrain_outlast(int main) {
    static int is_registered;
    struct sigaction now;
    parent = getppid();
    main_process = main;
    if (!is_registered) is_registered = pthread_atfork(NULL, NULL, leave_in_child) == 0;
    if (sigaction(SIGTERM, NULL, &now) == 0 && now.sa_handler != SIG_IGN) install(SIGTERM, on_terminate, &terminates);
    if (sigaction(SIGUSR2, NULL, &now) == 0 && now.sa_handler == SIG_DFL) install(SIGUSR2, on_asking, &asks);
    return 1;
}
