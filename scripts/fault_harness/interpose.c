/* Gives a process what a bad disk and a wrong clock would give it. Loaded before the C library.
 *
 * INTERPOSE_CONTROL is a file that holds a struct control, which others change while the process runs; only files
 * below INTERPOSE_BELOW are touched. Without both, nothing happens.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* Of a hundred calls so many fail with EIO. The counts are for who looks from outside. */
struct control {
  uint32_t loaded, reads, writes, syncs;
  int64_t clock_offset;
  uint64_t failed, shifted;
};

static struct control *control;
static char below[PATH_MAX];
static uint64_t drawn;

__attribute__((constructor)) static void begin(void) {
  const char *file = getenv("INTERPOSE_CONTROL"), *directory = getenv("INTERPOSE_BELOW");
  if (!file || !directory) return;
  snprintf(below, sizeof below, "%s/", directory);
  int fd = syscall(SYS_openat, AT_FDCWD, file, O_RDWR | O_CLOEXEC, 0);
  if (fd < 0) return;
  void *page = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  syscall(SYS_close, fd);
  if (page == MAP_FAILED) return;
  control = page;
  __atomic_add_fetch(&control->loaded, 1, __ATOMIC_RELAXED);
}

/* Whether the file is a regular one below the directory; it may have lost its name. */
static int is_below(int fd) {
  char link[64], path[PATH_MAX];
  struct stat status;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length <= 0) return 0;
  path[length] = 0;
  return strncmp(path, below, strlen(below)) == 0 && !fstat(fd, &status) &&
         (S_ISREG(status.st_mode) || S_ISDIR(status.st_mode));
}

static int fails(const uint32_t *percent, int fd) {
  if (!control || *percent == 0) return 0;
  uint64_t value = __atomic_add_fetch(&drawn, 0x9e3779b97f4a7c15u, __ATOMIC_RELAXED);
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  if ((value ^ (value >> 31)) % 100 >= *percent || !is_below(fd)) return 0;
  __atomic_add_fetch(&control->failed, 1, __ATOMIC_RELAXED);
  errno = EIO;
  return 1;
}

/* The address of a field, also while there is no control. */
#define RATE(field) (control ? &control->field : &(uint32_t){0})
#define REAL(name) \
  static __typeof__(name) *real; \
  if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

ssize_t read(int fd, void *bytes, size_t count) {
  REAL(read);
  return fails(RATE(reads), fd) ? -1 : real(fd, bytes, count);
}

ssize_t pread(int fd, void *bytes, size_t count, off_t at) {
  REAL(pread);
  return fails(RATE(reads), fd) ? -1 : real(fd, bytes, count, at);
}

ssize_t pread64(int fd, void *bytes, size_t count, off64_t at) {
  REAL(pread64);
  return fails(RATE(reads), fd) ? -1 : real(fd, bytes, count, at);
}

ssize_t write(int fd, const void *bytes, size_t count) {
  REAL(write);
  return fails(RATE(writes), fd) ? -1 : real(fd, bytes, count);
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t at) {
  REAL(pwrite);
  return fails(RATE(writes), fd) ? -1 : real(fd, bytes, count, at);
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t at) {
  REAL(pwrite64);
  return fails(RATE(writes), fd) ? -1 : real(fd, bytes, count, at);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
  REAL(writev);
  return fails(RATE(writes), fd) ? -1 : real(fd, parts, count);
}

int fsync(int fd) {
  REAL(fsync);
  return fails(RATE(syncs), fd) ? -1 : real(fd);
}

int fdatasync(int fd) {
  REAL(fdatasync);
  return fails(RATE(syncs), fd) ? -1 : real(fd);
}

int ftruncate(int fd, off_t length) {
  REAL(ftruncate);
  return fails(RATE(writes), fd) ? -1 : real(fd, length);
}

int ftruncate64(int fd, off64_t length) {
  REAL(ftruncate64);
  return fails(RATE(writes), fd) ? -1 : real(fd, length);
}

static time_t offset(void) {
  if (!control || control->clock_offset == 0) return 0;
  __atomic_add_fetch(&control->shifted, 1, __ATOMIC_RELAXED);
  return control->clock_offset;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  REAL(clock_gettime);
  int result = real(clock, now);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += offset();
  return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  REAL(gettimeofday);
  int result = real(now, zone);
  if (result == 0) now->tv_sec += offset();
  return result;
}

time_t time(time_t *place) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (place) *place = now.tv_sec;
  return now.tv_sec;
}
