/* Makes a process believe that its processor has AVX2 and nothing above: preloaded (LD_PRELOAD), it has
 * the kernel trap the cpuid instruction (arch_prctl ARCH_SET_CPUID; needs `cpuid_fault` in
 * /proc/cpuinfo) and answers it without the bits of AVX-512, AVX-VNNI, AVX10 and AMX. For engines that
 * choose their kernels by cpuid and obey no variable. Knows no engine. What asked before this library
 * was loaded (the C library's own string functions) keeps its answer.
 * Sources: arch_prctl(2); Intel SDM volume 2, CPUID leaf 7. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define ARCH_SET_CPUID 0x1012
#define BIT(n) (1u << (n))

/* Leaf 7, subleaf 0: F DQ IFMA PF ER CD BW VL; VBMI VBMI2 VNNI BITALG VPOPCNTDQ; 4VNNIW 4FMAPS
 * VP2INTERSECT AMX-BF16 FP16 AMX-TILE AMX-INT8. */
static const uint32_t ebx_70 = BIT(16) | BIT(17) | BIT(21) | BIT(26) | BIT(27) | BIT(28) | BIT(30) | BIT(31);
static const uint32_t ecx_70 = BIT(1) | BIT(6) | BIT(11) | BIT(12) | BIT(14);
static const uint32_t edx_70 = BIT(2) | BIT(3) | BIT(8) | BIT(22) | BIT(23) | BIT(24) | BIT(25);
/* Subleaf 1: AVX-VNNI AVX512-BF16 AMX-FP16 AVX-IFMA; VNNI-INT8 NE-CONVERT AMX-COMPLEX VNNI-INT16 AVX10. */
static const uint32_t eax_71 = BIT(4) | BIT(5) | BIT(21) | BIT(23);
static const uint32_t edx_71 = BIT(4) | BIT(5) | BIT(8) | BIT(10) | BIT(19);

typedef int (*sigaction_type)(int, const struct sigaction *, struct sigaction *);
typedef int (*sigmask_type)(int, const sigset_t *, sigset_t *);

static void *real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) abort();
    return found;
}

static void on_fault(int number, siginfo_t *info, void *context) {
    greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
    const uint8_t *code = (const uint8_t *)regs[REG_RIP];
    if (info->si_code != SI_KERNEL || code[0] != 0x0F || code[1] != 0xA2) { /* a fault of its own */
        struct sigaction plain = {.sa_handler = SIG_DFL};
        ((sigaction_type)real("sigaction"))(number, &plain, NULL);
        return; /* it happens again and ends the process */
    }
    uint32_t leaf = (uint32_t)regs[REG_RAX], sub = (uint32_t)regs[REG_RCX];
    uint32_t a = leaf, b, c = sub, d;
    syscall(SYS_arch_prctl, ARCH_SET_CPUID, 1);
    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0);
    if (leaf == 7 && sub == 0) {
        b &= ~ebx_70;
        c &= ~ecx_70;
        d &= ~edx_70;
    } else if (leaf == 7 && sub == 1) {
        a &= ~eax_71;
        d &= ~edx_71;
    }
    regs[REG_RAX] = a;
    regs[REG_RBX] = b;
    regs[REG_RCX] = c;
    regs[REG_RDX] = d;
    regs[REG_RIP] += 2;
}

/* Nobody takes the signal away: not by a handler, not by a mask. */
int sigaction(int number, const struct sigaction *action, struct sigaction *old) {
    return ((sigaction_type)real("sigaction"))(number, number == SIGSEGV ? NULL : action, old);
}

int pthread_sigmask(int how, const sigset_t *set, sigset_t *old) {
    sigset_t kept;
    if (set && how != SIG_UNBLOCK) {
        kept = *set;
        sigdelset(&kept, SIGSEGV);
        set = &kept;
    }
    return ((sigmask_type)real("pthread_sigmask"))(how, set, old);
}

__attribute__((constructor)) static void hold(void) {
    struct sigaction trap = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
    sigemptyset(&trap.sa_mask);
    if (((sigaction_type)real("sigaction"))(SIGSEGV, &trap, NULL) || syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0)) {
        perror("avx2_only: this machine cannot trap cpuid");
        _exit(86);
    }
}
