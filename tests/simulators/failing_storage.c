/* Lets the operating system refuse what would write below one directory: preloaded into a process.

   Writes, flushes, names that are made or moved: each counts, in all threads of a process. Which of
   them fail, how, and for how long, the environment says at the start and `storage_fails` later.
   Reading and removing always work, as they do on a disk that is full. */

#define _GNU_SOURCE
#undef _FORTIFY_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX];
static char until[PATH_MAX]; /* while this file is missing, the fault lasts; empty for for good */
static long counted, first;  /* `first` 0: nothing fails */
static int error_number, stays, is_short;

long storage_counted(void) { return counted; }

void storage_fails(long first_, int error_, int stays_, int short_) {
    pthread_mutex_lock(&lock);
    counted = 0, first = first_, error_number = error_, stays = stays_, is_short = short_;
    pthread_mutex_unlock(&lock);
}

void storage_below(const char *path) { snprintf(root, sizeof root, "%s", path); }

static long number(const char *name) {
    const char *text = getenv(name);
    return text ? atol(text) : 0;
}

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("FAILING_BELOW"), *freed = getenv("FAILING_UNTIL");
    if (path)
        storage_below(path);
    if (freed)
        snprintf(until, sizeof until, "%s", freed);
    storage_fails(number("FAILING_FROM"), (int)number("FAILING_ERROR"),
                  (int)number("FAILING_STAYS"), (int)number("FAILING_SHORT"));
}

static int is_below(const char *path) {
    size_t length = strlen(root);
    return length && !strncmp(path, root, length) && (path[length] == '/' || !path[length]);
}

static int path_is_below(int directory, const char *path) {
    char whole[2 * PATH_MAX], base[PATH_MAX], link[64];
    ssize_t length;
    if (!path || !root[0])
        return 0;
    if (path[0] == '/')
        return is_below(path);
    if (directory == AT_FDCWD)
        snprintf(link, sizeof link, "/proc/self/cwd");
    else
        snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
    length = readlink(link, base, sizeof base - 1);
    if (length < 0)
        return 0;
    base[length] = 0;
    snprintf(whole, sizeof whole, "%s/%s", base, path);
    return is_below(whole);
}

static int descriptor_is_below(int descriptor) {
    char link[64], base[PATH_MAX];
    ssize_t length;
    if (!root[0])
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    length = readlink(link, base, sizeof base - 1);
    if (length < 0)
        return 0;
    base[length] = 0;
    return is_below(base);
}

/* Count a call; tell whether it fails: 0 no, 1 yes, 2 it is the first and may do a part. */
static int refused(int matters) {
    int saved = errno, found = 0;
    if (!matters)
        return 0;
    pthread_mutex_lock(&lock);
    counted++;
    if (first && (counted == first || (stays && counted > first)))
        found = is_short && counted == first ? 2 : 1;
    if (found && until[0] && !access(until, F_OK))
        found = 0;
    pthread_mutex_unlock(&lock);
    errno = found == 1 ? error_number : saved;
    return found;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define OPENS(name, parameters, given, directory)                                                  \
    int name parameters {                                                                          \
        mode_t mode = 0;                                                                           \
        int is_made = flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE;                         \
        if (is_made) {                                                                             \
            va_list list;                                                                          \
            va_start(list, flags);                                                                 \
            mode = va_arg(list, mode_t);                                                           \
            va_end(list);                                                                          \
        }                                                                                          \
        if (refused(is_made && path_is_below(directory, path)))                                    \
            return -1;                                                                             \
        return REAL(name) given;                                                                   \
    }
OPENS(open, (const char *path, int flags, ...), (path, flags, mode), AT_FDCWD)
OPENS(open64, (const char *path, int flags, ...), (path, flags, mode), AT_FDCWD)
OPENS(openat, (int at, const char *path, int flags, ...), (at, path, flags, mode), at)
OPENS(openat64, (int at, const char *path, int flags, ...), (at, path, flags, mode), at)

#define WRITES(name, parameters, whole, half)                                                      \
    ssize_t name parameters {                                                                      \
        int found = refused(descriptor_is_below(descriptor));                                      \
        if (found == 2 && size > 1)                                                                \
            return REAL(name) half;                                                                \
        if (found == 2)                                                                            \
            errno = error_number;                                                                  \
        return found ? -1 : REAL(name) whole;                                                      \
    }
WRITES(write, (int descriptor, const void *data, size_t size), (descriptor, data, size),
       (descriptor, data, size / 2))
WRITES(pwrite, (int descriptor, const void *data, size_t size, off_t at),
       (descriptor, data, size, at), (descriptor, data, size / 2, at))
WRITES(pwrite64, (int descriptor, const void *data, size_t size, off64_t at),
       (descriptor, data, size, at), (descriptor, data, size / 2, at))

/* What does not do a part of its work fails instead. */
#define FAILS(kind, name, parameters, given, matters)                                              \
    kind name parameters {                                                                         \
        if (refused(matters)) {                                                                    \
            errno = error_number;                                                                  \
            return -1;                                                                             \
        }                                                                                          \
        return REAL(name) given;                                                                   \
    }
FAILS(ssize_t, writev, (int to, const struct iovec *parts, int count), (to, parts, count),
      descriptor_is_below(to))
FAILS(ssize_t, copy_file_range,
      (int from, off64_t *from_at, int to, off64_t *to_at, size_t size, unsigned flags),
      (from, from_at, to, to_at, size, flags), descriptor_is_below(to))
FAILS(ssize_t, sendfile64, (int to, int from, off64_t *at, size_t size), (to, from, at, size),
      descriptor_is_below(to))
FAILS(int, fsync, (int descriptor), (descriptor), descriptor_is_below(descriptor))
FAILS(int, fdatasync, (int descriptor), (descriptor), descriptor_is_below(descriptor))
FAILS(int, ftruncate, (int descriptor, off_t size), (descriptor, size),
      descriptor_is_below(descriptor))
FAILS(int, ftruncate64, (int descriptor, off64_t size), (descriptor, size),
      descriptor_is_below(descriptor))
FAILS(int, mkdir, (const char *path, mode_t mode), (path, mode), path_is_below(AT_FDCWD, path))
FAILS(int, mkdirat, (int at, const char *path, mode_t mode), (at, path, mode),
      path_is_below(at, path))
FAILS(int, rename, (const char *path, const char *to), (path, to), path_is_below(AT_FDCWD, to))
FAILS(int, renameat, (int at, const char *path, int to_at, const char *to), (at, path, to_at, to),
      path_is_below(to_at, to))
FAILS(int, symlink, (const char *to, const char *path), (to, path), path_is_below(AT_FDCWD, path))
FAILS(int, symlinkat, (const char *to, int at, const char *path), (to, at, path),
      path_is_below(at, path))
FAILS(int, link, (const char *path, const char *to), (path, to), path_is_below(AT_FDCWD, to))
FAILS(int, linkat, (int at, const char *path, int to_at, const char *to, int flags),
      (at, path, to_at, to, flags), path_is_below(to_at, to))
