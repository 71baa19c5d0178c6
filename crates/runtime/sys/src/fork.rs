//! Forking a process that has one thread.

use std::{
    ffi::{c_int, c_void},
    io,
    marker::PhantomData,
    mem,
    os::fd::{AsRawFd as _, BorrowedFd},
    ptr,
};

use rustix::process::Pid;

/// Bytes of a stack for a child that has none of its own. Only what is touched takes memory.
const STACK_SIZE: usize = 1 << 20;

/// Below a stack: whoever runs over it is killed. No page is larger where this runs.
const GUARD_SIZE: usize = 64 << 10;

/// A flag of clone3 that `libc` has in a type that is too small for it.
const CLONE_INTO_CGROUP: u64 = 1 << 33;

/// On which side of the fork the caller goes on.
#[derive(Debug)]
pub enum Fork {
    Parent { child: Pid },
    Child,
}

/// Splits this process in two. With more than one thread it is an error: in the child the others would have vanished in
/// the middle of whatever they did, locks held.
pub fn fork() -> io::Result<Fork> {
    SoleThread::check()?.fork()
}

/// A process that has one thread and forks more than once, also where it cannot look at itself any more because /proc
/// is another one's. Whoever has it starts no threads. A child has it from its parent.
#[derive(Debug)]
pub struct SoleThread {
    /// It says something about the thread it is on, and stays there.
    on_this_thread: PhantomData<*const ()>,
}

impl SoleThread {
    pub fn check() -> io::Result<Self> {
        // A process with other threads cannot leave them; for one without, there is nothing to leave. It is one call, where
        // a look at /proc is many.
        // SAFETY: takes a plain number; it succeeds only if it changes nothing.
        if unsafe { libc::unshare(libc::CLONE_THREAD) } != 0 {
            let error = io::Error::last_os_error();
            let threads = error.raw_os_error() == Some(libc::EINVAL);
            return Err(if threads {
                io::Error::other("cannot fork a process with other threads")
            } else {
                error
            });
        }
        Ok(Self {
            on_this_thread: PhantomData,
        })
    }

    pub fn fork(&self) -> io::Result<Fork> {
        // SAFETY: this process has exactly one thread, the caller's, so the child is a whole copy and may do anything.
        forked(unsafe { libc::fork() }.into())
    }

    /// The same, but the child begins in a cgroup of version 2, which is an open directory. To move it there afterwards the kernel
    /// would wait for a lock of the whole machine.
    pub fn fork_into(&self, cgroup: BorrowedFd<'_>) -> io::Result<Fork> {
        // SAFETY: the structure is plain data, for which zeroes are a valid value: no stack, no memory that is shared.
        let mut arguments: libc::clone_args = unsafe { mem::zeroed() };
        arguments.flags = CLONE_INTO_CGROUP;
        arguments.exit_signal = u64::from(libc::SIGCHLD.cast_unsigned());
        arguments.cgroup = u64::from(cgroup.as_raw_fd().cast_unsigned());
        // SAFETY: as in `fork_sibling`: the call is a fork, and the structure lives through it.
        forked(unsafe { libc::syscall(libc::SYS_clone3, &raw mut arguments, size_of_val(&arguments)) })
    }

    /// The same, but the child is this process's parent's: that one waits for it, and this process may end.
    pub fn fork_sibling(&self) -> io::Result<Fork> {
        let flags = libc::CLONE_PARENT | libc::SIGCHLD;
        // SAFETY: without a stack and without sharing memory the call is a fork, and as there the child is a whole copy.
        // The C library is not told: it would know the child's thread by a wrong number, which nothing here asks for.
        forked(unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) })
    }

    /// Spends the life of a child on `work`, in this process's memory: nothing is copied. Returns when the child has ended,
    /// with the code that `work` returns, or runs a program; until then this process stands still.
    ///
    /// All that `work` does to memory it does to this process's. Descriptors, rights and namespaces are the child's own, so
    /// what has a descriptor belongs to the caller, and `work` borrows it.
    pub fn vfork(&self, mut work: &mut dyn FnMut() -> i32) -> io::Result<Pid> {
        let stack = ChildStack::new()?;
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        let argument: *mut &mut dyn FnMut() -> i32 = &raw mut work;
        // SAFETY: the only thread of this process waits in the call until the child is through with its memory: that makes
        // the child's work a call on another stack, which is unused and lives until after it. `run_child` gets the
        // closure that it expects.
        let result = unsafe { libc::clone(run_child, stack.top(), flags, argument.cast()) };
        child_of(result.into())
    }
}

extern "C" fn run_child(argument: *mut c_void) -> c_int {
    // SAFETY: `vfork` gives the address of such a reference, and touches it no more before this process has ended.
    let work = unsafe { &mut *argument.cast::<&mut dyn FnMut() -> i32>() };
    crate::exit_at_once(work())
}

/// Memory for the stack of a child that shares that of its parent.
struct ChildStack {
    /// Where the guard begins; the stack is above it.
    bottom: *mut c_void,
}

impl ChildStack {
    const LENGTH: usize = GUARD_SIZE + STACK_SIZE;

    fn new() -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
        // SAFETY: new memory at a place that the kernel chooses is nobody's.
        let bottom = unsafe { libc::mmap(ptr::null_mut(), Self::LENGTH, access, flags, -1, 0) };
        if bottom == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let stack = Self { bottom };
        // SAFETY: nobody has used this memory yet.
        match unsafe { libc::mprotect(bottom, GUARD_SIZE, libc::PROT_NONE) } {
            0 => Ok(stack),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Stacks grow downwards.
    fn top(&self) -> *mut c_void {
        self.bottom.wrapping_byte_add(Self::LENGTH)
    }
}

impl Drop for ChildStack {
    fn drop(&mut self) {
        // SAFETY: the child that it was for has ended, or has other memory.
        unsafe { libc::munmap(self.bottom, Self::LENGTH) };
    }
}

fn forked(result: libc::c_long) -> io::Result<Fork> {
    match result {
        0 => Ok(Fork::Child),
        result => child_of(result).map(|child| Fork::Parent { child }),
    }
}

/// What a call that makes a process has returned to the parent: the child, or the failure that is the thread's last.
///
/// A failure is the number -1, and a signal to that one is a signal to every process of the machine.
pub(crate) fn child_of(result: libc::c_long) -> io::Result<Pid> {
    let child = i32::try_from(result).ok().and_then(process_id);
    child.ok_or_else(io::Error::last_os_error)
}

/// A process by its number. Numbers below one name groups of processes, or all there are: they are nobody's.
pub fn process_id(number: i32) -> Option<Pid> {
    (number > 0).then(|| Pid::from_raw(number)).flatten()
}

#[cfg(test)]
mod tests {
    use rustix::process::{WaitOptions, waitpid};

    use super::*;

    #[test]
    fn a_failed_fork_is_no_process() {
        // Taken for a process and killed, -1 would be every process of the machine.
        assert!(child_of(-1).is_err());
        assert!(forked(-1).is_err());
        assert_eq!(process_id(-1), None);
        assert_eq!(process_id(0), None);
        assert!(process_id(1).is_some());
    }

    /// In a process of its own, because the test harness has threads.
    fn in_one_thread(body: impl FnOnce(&SoleThread) -> i32) -> i32 {
        // SAFETY: the child calls nothing that another thread of this process may hold a lock of: no allocation, no output.
        let child = match unsafe { libc::fork() } {
            0 => crate::exit_at_once(SoleThread::check().map_or(99, |sole| body(&sole))),
            child => process_id(child).expect("forks"),
        };
        exit_code(child)
    }

    fn exit_code(child: Pid) -> i32 {
        let waited = waitpid(Some(child), WaitOptions::empty());
        let (_, status) = waited.expect("is a child").expect("has ended");
        status.exit_status().unwrap_or(98)
    }

    #[test]
    fn a_child_that_shares_memory_is_through_with_it_when_the_parent_goes_on() {
        let code = in_one_thread(|sole| {
            let mut written = 0;
            let child = sole.vfork(&mut || {
                // Another process, with descriptors of its own.
                // SAFETY: closing them here takes nothing from anybody.
                unsafe { libc::close_range(0, libc::c_uint::MAX, 0) };
                written = 40;
                7
            });
            let Ok(child) = child else { return 97 };
            // SAFETY: it only asks about a descriptor.
            let is_open = unsafe { libc::fcntl(0, libc::F_GETFD) } >= 0;
            if is_open { written + exit_code(child) } else { 96 }
        });
        assert_eq!(code, 47);
    }

    #[test]
    fn a_program_runs_beside_its_parent() {
        let code = in_one_thread(|sole| {
            let arguments = [c"sh".as_ptr(), c"-c".as_ptr(), c"exit 5".as_ptr(), ptr::null()];
            let child = sole.vfork(&mut || {
                // SAFETY: the list ends with a null pointer, and so does the empty one of variables.
                unsafe { libc::execve(c"/bin/sh".as_ptr(), arguments.as_ptr(), [ptr::null()].as_ptr()) };
                6
            });
            child.map_or(97, exit_code)
        });
        assert_eq!(code, 5);
    }

    #[test]
    fn a_process_with_threads_is_not_forked() {
        // The test harness runs tests on threads of their own.
        let error = fork()
            .map(|_| ())
            .expect_err("this process has at least two threads");
        assert!(error.to_string().contains("threads"), "{error}");
    }
}
