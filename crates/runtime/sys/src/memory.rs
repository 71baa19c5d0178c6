//! Memory that is free and that the allocator, or a stack, keeps for itself.

use std::{hint, ptr};

use crate::{SoleThread, arguments::first_argument};

/// Threads share this many of the allocator's pools. Each keeps what was ever allocated in it at one time, so a
/// process with many threads and short bursts of work grows by a burst per pool.
const POOLS: i32 = 2;

/// Lets all threads share a few pools. To be called before threads are made.
pub fn share_memory_pools() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it changes a number that the allocator reads under its own lock, and takes no pointer.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, POOLS);
    }
}

/// Gives the kernel back whole pages that are free. It takes milliseconds, and others who allocate may wait for it.
pub fn release_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it looks at the allocator's own lists, under its own locks, and takes no pointer.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Bytes of a stack that are looked at, above and below where it is. Nothing else is mapped as near to the first thread's.
const STACK_REACH: usize = 1 << 20;

/// Bytes below a frame that calls of its own may take.
const CALLS_OF_OWN: usize = 4096;

/// Gives the kernel back what the stack took for calls that have returned. A process that has begun with deep ones and
/// goes on with flat ones keeps their pages otherwise. It is for the first thread; on the stack of another nothing happens.
pub fn release_unused_stack(_sole: &SoleThread) {
    // SAFETY: it asks for a number.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(CALLS_OF_OWN);
    let frame = hint::black_box(0_u8);
    let here = (&raw const frame).addr();
    let is_first = first_argument().is_ok_and(|top| top.checked_sub(here).is_some_and(|it| it < STACK_REACH));
    let Some(end) = here.checked_sub(CALLS_OF_OWN).map(|end| end & !(page - 1)) else {
        return;
    };
    let Some(start) = end.checked_sub(STACK_REACH).filter(|_| is_first) else {
        return;
    };
    let unused = ptr::with_exposed_provenance_mut(start);
    // SAFETY: these pages are below the frame of this function and of what it calls, on the stack of the only thread, which
    // grows downwards: nobody has anything there, and whoever comes there finds zeroes instead of what others have left.
    unsafe { libc::madvise(unused, end - start, libc::MADV_DONTNEED) };
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    /// Bytes of this process that are in memory and belong to no file.
    fn anonymous() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").expect("reads");
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
        number.expect("the kernel says so") * 1024
    }

    #[test]
    fn what_is_free_goes_back_although_something_behind_it_is_not() {
        const BLOCKS: usize = 40_000;
        let before = anonymous();
        let mut blocks: Vec<Option<Box<[u8; 1024]>>> =
            (0..BLOCKS).map(|_| Some(Box::new([1; 1024]))).collect();
        // The last block keeps the allocator from giving back what is before it by itself.
        blocks.iter_mut().take(BLOCKS - 1).for_each(|block| *block = None);
        let kept = anonymous() - before;
        release_free_memory();
        let left = anonymous().saturating_sub(before);
        assert!(blocks[BLOCKS - 1].is_some());
        assert!(left * 4 < kept, "{left} of {kept} bytes are kept");
    }
}
