//! The checksum of answers, and the measurement of time and memory.

/// A checksum of all answers of a replay, as `../index/bench_index.c` defines it: each answer has the sum
/// of depth * (2 * worker + 1); before that sum is added, the checksum is multiplied.
pub struct Answers {
    pub checksum: u64,
    /// For each worker, the depth of the last answer that contained it.  Stored because a router
    /// would store it, too.
    depths: Vec<u32>,
    sum: u64,
    /// The sum of each answer, if they are recorded.
    pub sums: Option<Vec<u64>>,
}

impl Answers {
    pub fn new(workers: u32) -> Answers {
        Answers {
            checksum: 0,
            depths: vec![0; workers as usize],
            sum: 0,
            sums: None,
        }
    }

    #[inline]
    pub fn depth(&mut self, worker: u32, depth: u32) {
        self.depths[worker as usize] = depth;
        self.sum += u64::from(depth) * (2 * u64::from(worker) + 1);
    }

    #[inline]
    pub fn end(&mut self) {
        self.checksum = self
            .checksum
            .wrapping_mul(1_099_511_628_211)
            .wrapping_add(self.sum);
        if let Some(sums) = &mut self.sums {
            sums.push(self.sum);
        }
        self.sum = 0;
    }
}

/// CPU time of this process so far, in user mode and in the kernel.
#[derive(Clone, Copy)]
pub struct Usage {
    user_us: i64,
    kernel_us: i64,
}

impl Usage {
    pub fn now() -> Usage {
        // SAFETY: all zeros are a valid rusage, and getrusage writes only to it.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_SELF, &mut usage);
            usage
        };
        let us = |time: libc::timeval| time.tv_sec * 1_000_000 + time.tv_usec;
        Usage {
            user_us: us(usage.ru_utime),
            kernel_us: us(usage.ru_stime),
        }
    }

    /// The kernel's share of the CPU time since `self`, in percent; None below 10 ms of CPU time.
    pub fn kernel_percent_since(self) -> Option<f64> {
        let now = Usage::now();
        let (user, kernel) = (now.user_us - self.user_us, now.kernel_us - self.kernel_us);
        (user + kernel >= 10_000).then(|| 100.0 * kernel as f64 / (user + kernel) as f64)
    }
}

/// CPU time of this thread: page faults are in it, waiting for a busy core is not.
pub fn cpu_ns() -> u64 {
    // SAFETY: all zeros are a valid timespec, and clock_gettime writes only to it.
    let now = unsafe {
        let mut now: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut now);
        now
    };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The value that `permille` of the values do not exceed; 0 if there are none.
pub fn percentile(sorted: &[u64], permille: usize) -> u64 {
    let rank = (sorted.len() * permille).div_ceil(1000).max(1) - 1;
    sorted.get(rank).copied().unwrap_or(0)
}

/// Resident memory of this process.
pub fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text
        .split(' ')
        .nth(1)
        .and_then(|word| word.parse::<u64>().ok())
        .unwrap_or(0);
    pages * 4096
}
