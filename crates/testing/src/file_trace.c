/* Writes down, in order, what a process does to the files below one directory. Loaded before the C library.
 *
 * TRACE_BELOW is the directory, TRACE_TO the file that is written. A record is a line, and for a write the bytes after it:
 *   C <inode> <path>            a file was made          T <inode> <length>   it was cut
 *   W <inode> <offset> <count>  it was written           S <inode>            it was brought to the disk
 *   D <path>                    a directory was brought to the disk
 *   M <path>                    a directory was made     U <path>             something was removed
 *   R <from>\t<to>              something was renamed
 * Every call is made under one lock, so that the order of the records is the order of the calls.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int trace = -1;
static char below[PATH_MAX];

__attribute__((constructor)) static void begin(void) {
  const char *directory = getenv("TRACE_BELOW"), *file = getenv("TRACE_TO");
  if (!directory || !file) return;
  snprintf(below, sizeof below, "%s/", directory);
  trace = syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static void put(const void *bytes, size_t count) {
  const char *next = bytes;
  while (count > 0) {
    ssize_t done = syscall(SYS_write, trace, next, count);
    if (done <= 0) abort();
    next += done;
    count -= done;
  }
}

static void line(const char *format, ...) {
  char text[3 * PATH_MAX];
  va_list arguments;
  va_start(arguments, format);
  int count = vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  put(text, count);
}

static int is_traced(const char *path) {
  return trace >= 0 && path && strncmp(path, below, strlen(below)) == 0;
}

/* The inode of a regular file below the directory; zero for everything else. The file may have lost its name. */
static unsigned long inode(int fd) {
  char link[64], path[PATH_MAX];
  struct stat status;
  if (trace < 0 || fd == trace) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length <= 0) return 0;
  path[length] = 0;
  if (!is_traced(path) || fstat(fd, &status) || !S_ISREG(status.st_mode)) return 0;
  return status.st_ino;
}

#define REAL(name) \
  static __typeof__(name) *real; \
  if (!real) real = dlsym(RTLD_NEXT, #name)

static int opened(int fd, const char *path, int flags, int was_there) {
  unsigned long number = fd >= 0 ? inode(fd) : 0;
  if (number && !was_there) line("C %lu %s\n", number, path);
  else if (number && (flags & O_TRUNC)) line("T %lu 0\n", number);
  return fd;
}

#define OPEN(name) \
  int name(const char *path, int flags, ...) { \
    REAL(name); \
    va_list arguments; \
    va_start(arguments, flags); \
    mode_t mode = va_arg(arguments, mode_t); \
    va_end(arguments); \
    if (!is_traced(path)) return real(path, flags, mode); \
    pthread_mutex_lock(&lock); \
    struct stat status; \
    int was_there = stat(path, &status) == 0; \
    int fd = opened(real(path, flags, mode), path, flags, was_there); \
    pthread_mutex_unlock(&lock); \
    return fd; \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
  int name(int directory, const char *path, int flags, ...) { \
    REAL(name); \
    va_list arguments; \
    va_start(arguments, flags); \
    mode_t mode = va_arg(arguments, mode_t); \
    va_end(arguments); \
    if (!is_traced(path)) return real(directory, path, flags, mode); \
    pthread_mutex_lock(&lock); \
    struct stat status; \
    int was_there = stat(path, &status) == 0; \
    int fd = opened(real(directory, path, flags, mode), path, flags, was_there); \
    pthread_mutex_unlock(&lock); \
    return fd; \
  }
OPENAT(openat)
OPENAT(openat64)

ssize_t write(int fd, const void *bytes, size_t count) {
  REAL(write);
  unsigned long number = inode(fd);
  if (!number) return real(fd, bytes, count);
  pthread_mutex_lock(&lock);
  off_t offset = (fcntl(fd, F_GETFL) & O_APPEND) ? lseek(fd, 0, SEEK_END) : lseek(fd, 0, SEEK_CUR);
  ssize_t done = real(fd, bytes, count);
  if (done > 0) {
    line("W %lu %ld %zd\n", number, (long)offset, done);
    put(bytes, done);
  }
  pthread_mutex_unlock(&lock);
  return done;
}

#define PWRITE(name, type) \
  ssize_t name(int fd, const void *bytes, size_t count, type offset) { \
    REAL(name); \
    unsigned long number = inode(fd); \
    if (!number) return real(fd, bytes, count, offset); \
    pthread_mutex_lock(&lock); \
    ssize_t done = real(fd, bytes, count, offset); \
    if (done > 0) { \
      line("W %lu %ld %zd\n", number, (long)offset, done); \
      put(bytes, done); \
    } \
    pthread_mutex_unlock(&lock); \
    return done; \
  }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define TRUNCATE(name, type) \
  int name(int fd, type length) { \
    REAL(name); \
    unsigned long number = inode(fd); \
    pthread_mutex_lock(&lock); \
    int done = real(fd, length); \
    if (number && done == 0) line("T %lu %ld\n", number, (long)length); \
    pthread_mutex_unlock(&lock); \
    return done; \
  }
TRUNCATE(ftruncate, off_t)
TRUNCATE(ftruncate64, off64_t)

static void synced(int fd) {
  char link[64], path[PATH_MAX];
  struct stat status;
  if (trace < 0 || fstat(fd, &status)) return;
  if (S_ISDIR(status.st_mode)) {
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return;
    path[length] = 0;
    line("D %s\n", path);
  } else if (inode(fd)) {
    line("S %lu\n", (unsigned long)status.st_ino);
  }
}

#define SYNC(name) \
  int name(int fd) { \
    REAL(name); \
    pthread_mutex_lock(&lock); \
    int done = real(fd); \
    if (done == 0) synced(fd); \
    pthread_mutex_unlock(&lock); \
    return done; \
  }
SYNC(fsync)
SYNC(fdatasync)

int rename(const char *from, const char *to) {
  REAL(rename);
  pthread_mutex_lock(&lock);
  int done = real(from, to);
  if (done == 0 && (is_traced(from) || is_traced(to))) line("R %s\t%s\n", from, to);
  pthread_mutex_unlock(&lock);
  return done;
}

#define REMOVE(name) \
  int name(const char *path) { \
    REAL(name); \
    pthread_mutex_lock(&lock); \
    int done = real(path); \
    if (done == 0 && is_traced(path)) line("U %s\n", path); \
    pthread_mutex_unlock(&lock); \
    return done; \
  }
REMOVE(unlink)
REMOVE(rmdir)

/* Whole trees are removed by descriptors of their directories. */
int unlinkat(int directory, const char *name, int flags) {
  REAL(unlinkat);
  char link[64], path[2 * PATH_MAX];
  ssize_t length = -1;
  if (trace >= 0 && directory != AT_FDCWD) {
    snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
    length = readlink(link, path, PATH_MAX - 1);
  }
  if (length > 0) snprintf(path + length, sizeof path - length, "/%s", name);
  else snprintf(path, sizeof path, "%s", name);
  pthread_mutex_lock(&lock);
  int done = real(directory, name, flags);
  if (done == 0 && is_traced(path)) line("U %s\n", path);
  pthread_mutex_unlock(&lock);
  return done;
}

int mkdir(const char *path, mode_t mode) {
  REAL(mkdir);
  pthread_mutex_lock(&lock);
  int done = real(path, mode);
  if (done == 0 && is_traced(path)) line("M %s\n", path);
  pthread_mutex_unlock(&lock);
  return done;
}
