//! The SIGBUS handler: turns the signal of a missing page into a flag.
//!
//! A mapped file may be truncated, or its file system may fail to read a page or to find room for one. The next
//! access to the page raises SIGBUS, which would kill the process. This module owns the process-wide SIGBUS handler.
//! It maps a page of zeros over a missing page of a guarded range, sets the flag of the range, and lets the access be
//! retried. Any other SIGBUS goes to the previous handler, by default Rust's own for stack overflows.
//!
//! Contains `unsafe` code: only libc can install a signal handler and replace a page.
//!
//! Invariant: the handler allocates nothing, takes no lock and never waits.
//! Invariant: nothing is ever mapped over an address outside the guarded ranges.
//! Invariant: the flag of a range is set before its first page of zeros can be read.
//!
//! Gives no meaning to a lost range. Two threads that meet the same missing page may each map one, and a value stored
//! in between is lost. Drop a lost range soon: every scattered page of zeros takes up to two of the process's
//! mappings (65530 on Linux), and once they are used up, the next missing page kills the process after all.
//!
//! Not guarded against: a system call with a pointer into the range (it fails with EFAULT), and a handler
//! that is installed later and does not pass on foreign signals. Miri and loom have no signals, so nothing is
//! guarded there.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::{MaybeUninit, transmute};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, compiler_fence};
use std::sync::{Mutex, OnceLock, PoisonError};

#[cfg(not(target_os = "macos"))]
use libc::__errno_location as errno_location;
#[cfg(target_os = "macos")]
use libc::__error as errno_location;

/// How many ranges can be guarded at a time. A process has a few stores with a few ranges each. 1024 ranges
/// of 32 bytes are 32 KiB, which the handler scans faster than its mmap takes.
const RANGE_COUNT: usize = 1024;

static RANGES: [Range; RANGE_COUNT] = [const { Range::new() }; RANGE_COUNT];

/// The range of guards that guard nothing. The handler does not look at it.
static UNGUARDED: Range = Range::new();

/// Held while a range is registered. Contains the context once the handler is installed.
static REGISTRATION: Mutex<Option<&Context>> = Mutex::new(None);

/// Set before the handler is installed.
static CONTEXT: OnceLock<Context> = OnceLock::new();

/// A guarded range. Dropping this ends the guarding; drop it before unmapping.
pub(crate) struct Guard {
    range: &'static Range,
}

impl Guard {
    /// Guards the `bytes` bytes of a mapping from `base`, which must be the start of a page.
    ///
    /// The caller makes sure that no access happens during or after the drop of the guard.
    pub(crate) fn new(base: *const u8, bytes: usize) -> io::Result<Self> {
        if cfg!(any(miri, loom)) {
            return Ok(Self { range: &UNGUARDED });
        }
        // A panic leaves nothing half done here, so a poisoned mutex is taken like any other.
        let mut installed = REGISTRATION.lock().unwrap_or_else(PoisonError::into_inner);
        let page_bytes = match *installed {
            Some(context) => context.page_bytes,
            None => installed.insert(install()?).page_bytes,
        };
        if !base.addr().is_multiple_of(page_bytes) {
            let text = format!("{base:p} is not the start of a page of {page_bytes} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let range = RANGES.iter().find(|range| range.is_free()).ok_or_else(|| {
            io::Error::other(format!("cannot guard more than {RANGE_COUNT} ranges at a time"))
        })?;
        range.register(base.addr(), bytes);
        Ok(Self { range })
    }

    /// Whether an access met a missing page. Covers all earlier accesses of this thread.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        // SeqCst, for the compiler alone: pairs with the handler on this thread. Earlier accesses may raise
        // the signal, so this load must not move above them; a weaker fence would let the load pass a store.
        compiler_fence(Ordering::SeqCst);
        self.range.lost.load(Ordering::Relaxed)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.range.release();
    }
}

/// One guarded range, or an unused entry.
///
/// The handler may read it at any time, even during a change. It always sees the range it looks for, as that range
/// does not change: its guard outlives the interrupted access. For other ranges it must only not combine two halves
/// of different ranges, which `generation` rules out: it is the same, and odd, before and after the other reads.
struct Range {
    /// How often the range was registered or released: odd while it is guarded.
    generation: AtomicUsize,
    base: AtomicUsize,
    bytes: AtomicUsize,
    lost: AtomicBool,
}

impl Range {
    const fn new() -> Self {
        Self {
            generation: AtomicUsize::new(0),
            base: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            lost: AtomicBool::new(false),
        }
    }

    fn is_free(&self) -> bool {
        // Acquire: pairs with `release`, so that the previous guard has finished with the range.
        self.generation.load(Ordering::Acquire).is_multiple_of(2)
    }

    /// Registers a range. The caller holds the lock and has found this entry free.
    fn register(&self, base: usize, bytes: usize) {
        self.lost.store(false, Ordering::Relaxed);
        // Release, both: pairs with the loads in `contains`. A reader of one of these values also sees that
        // the generation has moved on from the previous range.
        self.base.store(base, Ordering::Release);
        self.bytes.store(bytes, Ordering::Release);
        // Release: pairs with the first load in `contains`, which must see this base and length.
        self.generation.fetch_add(1, Ordering::Release);
    }

    fn release(&self) {
        // Release: pairs with `is_free`.
        self.generation.fetch_add(1, Ordering::Release);
    }

    fn contains(&self, address: usize) -> bool {
        // Acquire: pairs with the last store in `register`.
        let generation = self.generation.load(Ordering::Acquire);
        // Acquire, both: pairs with the first stores in `register`, and keeps the second load of the
        // generation below these two.
        let base = self.base.load(Ordering::Acquire);
        let bytes = self.bytes.load(Ordering::Acquire);
        let is_whole = self.generation.load(Ordering::Relaxed) == generation;
        is_whole && !generation.is_multiple_of(2) && address.wrapping_sub(base) < bytes
    }
}

type PlainHandler = unsafe extern "C" fn(c_int);
type InfoHandler = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

struct Context {
    /// The previous SIGBUS action.
    previous: libc::sigaction,
    page_bytes: usize,
}

/// Installs the handler. The caller holds the lock; the handler is not yet installed.
fn install() -> io::Result<&'static Context> {
    let context = Context { previous: present_action()?, page_bytes: page_bytes()? };
    let context = CONTEXT.get_or_init(|| context);
    // Keeps the mask and the other flags of the previous handler, so that it runs as before. SA_RESETHAND is
    // left to `pass_on`: it applies to the first signal that is passed on.
    let flags = context.previous.sa_flags & !libc::SA_RESETHAND;
    let action = libc::sigaction {
        sa_sigaction: (on_sigbus as *const ()).expose_provenance(),
        sa_flags: flags | libc::SA_SIGINFO | libc::SA_ONSTACK,
        ..context.previous
    };
    // SAFETY: `on_sigbus` has the signature that SA_SIGINFO requires, is async-signal-safe, and passes on signals
    // that are not its own.
    match unsafe { libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) } {
        0 => Ok(context),
        _ => Err(io::Error::last_os_error()),
    }
}

fn present_action() -> io::Result<libc::sigaction> {
    let mut action = MaybeUninit::uninit();
    // SAFETY: without a new action this only writes the current one, into memory of the right size.
    if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), action.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: sigaction succeeded, so it has written the action.
    Ok(unsafe { action.assume_init() })
}

fn page_bytes() -> io::Result<usize> {
    // SAFETY: sysconf takes a number and returns one.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).map_err(|_| io::Error::last_os_error())
}

/// # Safety
///
/// Must be called as a signal handler, with the arguments that the kernel passes with SA_SIGINFO.
unsafe extern "C" fn on_sigbus(signal: c_int, info: *mut libc::siginfo_t, frame: *mut c_void) {
    // The context was set before the handler was installed. No `expect`: a handler must not panic.
    let Some(context) = CONTEXT.get() else { return };
    // SAFETY: the kernel passes a valid siginfo (this function's duty), on this thread's stack.
    let fault = unsafe { &*info };
    if !recover(fault, context.page_bytes) {
        // SAFETY: these are the arguments of a handler (this function's duty).
        unsafe { pass_on(&context.previous, signal, info, frame) };
    }
}

/// Maps a page of zeros at the fault, if that is in a guarded range.
fn recover(fault: &libc::siginfo_t, page_bytes: usize) -> bool {
    // A sent signal has no address, and a misaligned access also fails on a page of zeros. macOS does not
    // distinguish these: it reports BUS_ADRALN for everything, with the address of the thread's last fault.
    let has_page = !is_sent(fault) && fault.si_code != libc::BUS_ADRALN;
    if !has_page && cfg!(not(target_os = "macos")) {
        return false;
    }
    // SAFETY: on Linux, the code (checked above) comes with an address; on macOS, the address is a separate
    // field that always exists.
    let address = unsafe { fault.si_addr() };
    let Some(range) = RANGES.iter().find(|range| range.contains(address.addr())) else {
        return false;
    };
    // Relaxed: the system call below orders this before any thread's access to the page.
    range.lost.store(true, Ordering::Relaxed);
    map_zeros(address.map_addr(|address| address & !(page_bytes - 1)), page_bytes)
}

fn map_zeros(page: *mut c_void, page_bytes: usize) -> bool {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: takes no argument, and returns the address of this thread's errno.
    let errno = unsafe { errno_location() };
    // SAFETY: the address is valid as long as the thread lives, and only this thread uses it.
    let errno_before = unsafe { errno.read() };
    // SAFETY: the page is in a guarded range, so it belongs to a mapped file that stays mapped until the
    // interrupted access is retried. Its content is lost already. To others this is no more than another
    // process storing zeros, which all users of a shared file must expect at any time.
    let mapped = unsafe { libc::mmap(page, page_bytes, protection, flags, -1, 0) };
    // SAFETY: as for the read above.
    unsafe { errno.write(errno_before) };
    mapped != libc::MAP_FAILED
}

/// Whether the signal was sent by a process rather than raised by an access. Unknown on macOS.
fn is_sent(fault: &libc::siginfo_t) -> bool {
    fault.si_code <= 0
}

/// Handles a signal as it would have been handled before this handler was installed.
///
/// # Safety
///
/// The last three arguments are those that the kernel passed to the calling handler.
unsafe fn pass_on(
    previous: &libc::sigaction,
    signal: c_int,
    info: *mut libc::siginfo_t,
    frame: *mut c_void,
) {
    let handler = previous.sa_sigaction;
    // SAFETY: as for this function: a valid siginfo.
    let fault = unsafe { &*info };
    if handler == libc::SIG_IGN && is_sent(fault) {
        return;
    }
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // Kills the process once the handler has returned: by the signal raised here or, if that is ignored,
        // by the retried access, whose signal cannot be ignored.
        restore(previous);
        // SAFETY: sends a signal to this thread, in order to kill the process.
        unsafe { libc::raise(signal) };
        return;
    }
    if previous.sa_flags & libc::SA_RESETHAND != 0 {
        restore(&libc::sigaction { sa_sigaction: libc::SIG_DFL, ..*previous });
    }
    let handler = ptr::with_exposed_provenance::<()>(handler);
    if previous.sa_flags & libc::SA_SIGINFO != 0 {
        // SAFETY: it was installed as a handler, with SA_SIGINFO, so it has this signature.
        let handler = unsafe { transmute::<*const (), InfoHandler>(handler) };
        // SAFETY: these are the arguments of a handler (this function's duty).
        unsafe { handler(signal, info, frame) };
    } else {
        // SAFETY: it was installed as a handler, without SA_SIGINFO, so it has this signature.
        let handler = unsafe { transmute::<*const (), PlainHandler>(handler) };
        // SAFETY: this is the argument of a handler (this function's duty).
        unsafe { handler(signal) };
    }
}

/// Restores a SIGBUS action in place of the handler.
fn restore(action: &libc::sigaction) {
    // SAFETY: the action is the previous or the default one. The call cannot fail, as the signal exists.
    unsafe { libc::sigaction(libc::SIGBUS, action, ptr::null_mut()) };
}

#[cfg(all(test, not(any(miri, loom))))]
mod tests {
    use std::fs::File;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Output, exit};
    use std::sync::Barrier;
    use std::sync::atomic::AtomicU64;
    use std::{array, env, hint, thread};

    use memmap2::MmapRaw;

    use super::*;

    /// Set in a child of a test: the same test binary, running only that test in a given role. A child
    /// returns into the test harness only to fail.
    const CHILD_ROLE: &str = "TIDEGATE_STORE_TEST_GUARD_ROLE";

    /// A mapped file; the first word of each page is the page's number plus 100.
    struct Mapped {
        file: File,
        map: MmapRaw,
    }

    impl Mapped {
        fn new(pages: usize) -> Self {
            let file = tempfile::tempfile().unwrap();
            file.set_len((pages * page_bytes().unwrap()) as u64).unwrap();
            let map = MmapRaw::map_raw(&file).unwrap();
            let mapped = Self { file, map };
            (0..pages).for_each(|page| mapped.word(page).store(100 + page as u64, RELAXED));
            mapped
        }

        fn guard(&self) -> Guard {
            Guard::new(self.map.as_ptr(), self.map.len()).unwrap()
        }

        fn word(&self, page: usize) -> &AtomicU64 {
            let offset = page * page_bytes().unwrap();
            assert!(offset < self.map.len());
            // SAFETY: in bounds (checked above).
            let word = unsafe { self.map.as_mut_ptr().add(offset) };
            // SAFETY: in bounds, aligned to its page, mapped as long as `self`, and only ever accessed as an atomic.
            unsafe { AtomicU64::from_ptr(word.cast()) }
        }

        fn load(&self, page: usize) -> u64 {
            self.word(page).load(RELAXED)
        }

        fn keep_pages(&self, pages: usize) {
            self.file.set_len((pages * page_bytes().unwrap()) as u64).unwrap();
        }
    }

    const RELAXED: Ordering = Ordering::Relaxed;

    /// Runs a test of this module in a separate process.
    fn child(test: &str, role: &str) -> Output {
        let module = module_path!().split_once("::").unwrap().1;
        Command::new(env::current_exe().unwrap())
            .args(["--exact", &format!("{module}::{test}"), "--nocapture", "--test-threads=1"])
            .env(CHILD_ROLE, role)
            .output()
            .unwrap()
    }

    fn role() -> Option<String> {
        env::var(CHILD_ROLE).ok()
    }

    #[test]
    fn a_shortened_file_is_survived_and_noticed() {
        let [file, other] = array::from_fn(|_| Mapped::new(4));
        let [guard, other_guard] = [&file, &other].map(Mapped::guard);
        file.keep_pages(2);

        assert_eq!([file.load(0), file.load(1)], [100, 101]);
        assert!(!guard.is_lost(), "what was lost was not missed yet");

        assert_eq!(file.load(3), 0);
        assert!(guard.is_lost());
        file.word(2).store(7, RELAXED);
        assert_eq!([0, 1, 2, 3].map(|page| file.load(page)), [100, 101, 7, 0]);
        file.word(3).store(8, RELAXED);
        assert_eq!(file.load(3), 8);
        file.map.flush().unwrap();

        assert_eq!([0, 1, 2, 3].map(|page| other.load(page)), [100, 101, 102, 103]);
        assert!(!other_guard.is_lost());
    }

    #[test]
    fn a_page_beyond_the_loss_still_reaches_the_file() {
        let file = Mapped::new(3);
        let guard = file.guard();
        file.keep_pages(1);
        assert_eq!(file.load(1), 0);
        assert!(guard.is_lost());

        file.keep_pages(3);
        file.word(0).store(1, RELAXED);
        file.word(1).store(2, RELAXED);
        file.word(2).store(3, RELAXED);
        let again = MmapRaw::map_raw(&file.file).unwrap();
        let again = Mapped { file: file.file.try_clone().unwrap(), map: again };
        assert_eq!([0, 1, 2].map(|page| again.load(page)), [1, 0, 3]);
    }

    #[test]
    fn a_store_is_noticed_at_once() {
        for _ in 0..100 {
            let file = Mapped::new(1);
            let guard = file.guard();
            file.keep_pages(0);
            file.word(0).store(1, RELAXED);
            assert!(guard.is_lost());
        }
    }

    #[test]
    fn many_threads_may_miss_the_same_pages() {
        const THREADS: usize = 8;
        const PAGES: usize = 32;
        for _ in 0..20 {
            let files: [Mapped; 2] = array::from_fn(|_| Mapped::new(PAGES));
            let guards = files.each_ref().map(Mapped::guard);
            files.iter().for_each(|file| file.keep_pages(1));
            let start = Barrier::new(THREADS);
            thread::scope(|scope| {
                for thread in 0..THREADS {
                    let (start, files, guards) = (&start, &files, &guards);
                    scope.spawn(move || {
                        start.wait();
                        for page in 1..PAGES {
                            let file = (thread + page) % files.len();
                            files[file].word(page).fetch_add(1, RELAXED);
                            assert!(guards[file].is_lost());
                            // Ranges come and go while the handlers look through them.
                            drop(guards_of_nothing(4));
                        }
                    });
                }
            });
            for file in &files {
                assert_eq!(file.load(0), 100);
                // Half of the threads added 1 each, and all additions but the last may be lost.
                let sums = 1..=THREADS as u64 / 2;
                (1..PAGES).for_each(|page| assert!(sums.contains(&file.load(page))));
            }
        }
    }

    /// Guards of ranges without memory.
    fn guards_of_nothing(count: usize) -> Vec<Guard> {
        let page_bytes = page_bytes().unwrap();
        (1..=count)
            .map(|page| Guard::new(ptr::without_provenance(page * page_bytes), 8).unwrap())
            .collect()
    }

    #[test]
    fn ranges_are_used_again_and_start_unharmed() {
        let file = Mapped::new(1);
        file.keep_pages(0);
        for _ in 0..10 * RANGE_COUNT {
            let guard = file.guard();
            assert!(!guard.is_lost());
        }
        for _ in 0..10 * RANGE_COUNT {
            let file = Mapped::new(1);
            let guard = file.guard();
            file.keep_pages(0);
            assert!(!guard.is_lost());
            assert_eq!(file.load(0), 0);
            assert!(guard.is_lost());
        }
    }

    #[test]
    fn a_range_starts_on_a_page() {
        let error = Guard::new(ptr::without_provenance(8), 8).err().unwrap();
        let page_bytes = page_bytes().unwrap();
        let expected = format!("0x8 is not the start of a page of {page_bytes} bytes");
        assert_eq!(error.to_string(), expected);
    }

    /// In a separate process, as it uses up the table for all tests.
    #[test]
    fn one_range_too_many_is_refused() {
        if role().is_none() {
            let output = child("one_range_too_many_is_refused", "child");
            assert!(output.status.success(), "{output:?}");
            return;
        }
        let mut guards = guards_of_nothing(RANGE_COUNT);
        let file = Mapped::new(1);
        for _ in 0..2 {
            let error = Guard::new(file.map.as_ptr(), file.map.len()).err().unwrap();
            assert_eq!(error.to_string(), "cannot guard more than 1024 ranges at a time");
        }
        guards.remove(100);
        let guard = file.guard();
        file.keep_pages(0);
        assert_eq!(file.load(0), 0);
        assert!(guard.is_lost());
        exit(0);
    }

    /// Exit code of a child that survives its signal.
    const SURVIVED: Option<i32> = Some(40);
    const IN_PLAIN_HANDLER: Option<i32> = Some(41);
    const IN_INFO_HANDLER: Option<i32> = Some(42);
    const KILLED: Option<i32> = None;

    #[test]
    fn any_other_sigbus_ends_as_it_would_have() {
        if let Some(role) = role() {
            let (previous, cause) = role.split_once(' ').unwrap();
            end(previous, cause);
        }
        #[track_caller]
        fn check(role: &str, code: Option<i32>) {
            let output = child("any_other_sigbus_ends_as_it_would_have", role);
            assert_eq!(output.status.code(), code, "{role}: {output:?}");
            let signal = (code == KILLED).then_some(libc::SIGBUS);
            assert_eq!(output.status.signal(), signal, "{role}: {output:?}");
        }
        check("rust's unguarded", KILLED);
        check("rust's released", KILLED);
        check("default unguarded", KILLED);
        check("default sent", KILLED);
        check("ignore unguarded", KILLED);
        check("ignore sent", SURVIVED);
        check("plain unguarded", IN_PLAIN_HANDLER);
        check("plain sent", IN_PLAIN_HANDLER);
        check("info unguarded", IN_INFO_HANDLER);
        check("once unguarded", KILLED);
        check("once sent", SURVIVED);
        // Neither is for a missing page, whatever address comes with it.
        #[cfg(target_os = "linux")]
        for cause in ["sent-at", "misaligned"] {
            check(&format!("plain {cause}"), IN_PLAIN_HANDLER);
            check(&format!("ignore {cause}"), if cause == "sent-at" { SURVIVED } else { KILLED });
        }
    }

    static EXPECTED_FAULT: AtomicUsize = AtomicUsize::new(0);

    extern "C" fn plain_handler(signal: c_int) {
        assert_eq!(signal, libc::SIGBUS);
        // SAFETY: takes a number, and does not return.
        unsafe { libc::_exit(IN_PLAIN_HANDLER.unwrap()) };
    }

    extern "C" fn info_handler(_: c_int, info: *mut libc::siginfo_t, frame: *mut c_void) {
        // SAFETY: called as a handler that has SA_SIGINFO.
        let info = unsafe { &*info };
        // SAFETY: the signal is for a fault, so it has an address.
        let address = unsafe { info.si_addr() }.addr();
        assert_eq!((address, frame.is_null()), (EXPECTED_FAULT.load(RELAXED), false));
        // SAFETY: takes a number, and does not return.
        unsafe { libc::_exit(IN_INFO_HANDLER.unwrap()) };
    }

    extern "C" fn idle_handler(_: c_int) {}

    /// Raises a SIGBUS with this code on this thread, as if for an access to `address`.
    #[cfg(target_os = "linux")]
    fn raise_at(code: c_int, address: *const u8) {
        // SAFETY: all of its fields are numbers and pointers, so it may be zeros.
        let mut info = unsafe { MaybeUninit::<libc::siginfo_t>::zeroed().assume_init() };
        (info.si_signo, info.si_code) = (libc::SIGBUS, code);
        // SAFETY: within the siginfo, which is 128 bytes long.
        let at = unsafe { (&raw mut info).cast::<*const u8>().add(2) };
        // SAFETY: in bounds and aligned; the address follows the first three numbers.
        unsafe { at.write(address) };
        // SAFETY: takes no argument.
        let thread = unsafe { libc::gettid() };
        let (call, process) = (libc::SYS_rt_tgsigqueueinfo, std::process::id());
        // SAFETY: takes three numbers and a siginfo that outlives the call.
        let sent = unsafe { libc::syscall(call, process, thread, libc::SIGBUS, &raw const info) };
        assert_eq!(sent, 0);
    }

    /// Ends this process by a SIGBUS that is not the guard's, with `previous` installed before the guard.
    fn end(previous: &str, cause: &str) -> ! {
        let action = match previous {
            "rust's" => None,
            "default" => Some((libc::SIG_DFL, 0)),
            "ignore" => Some((libc::SIG_IGN, 0)),
            "plain" => Some(((plain_handler as *const ()).expose_provenance(), 0)),
            "info" => Some(((info_handler as *const ()).expose_provenance(), libc::SA_SIGINFO)),
            "once" => Some(((idle_handler as *const ()).expose_provenance(), libc::SA_RESETHAND)),
            _ => panic!("{previous}"),
        };
        if let Some((sa_sigaction, sa_flags)) = action {
            let present = present_action().unwrap();
            restore(&libc::sigaction { sa_sigaction, sa_flags, ..present });
        }
        let [file, other] = array::from_fn(|_| Mapped::new(1));
        let other_guard = other.guard();
        let flags = present_action().unwrap().sa_flags;
        let relevant = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESETHAND;
        assert_eq!(flags & relevant, libc::SA_SIGINFO | libc::SA_ONSTACK);
        other.keep_pages(0);
        EXPECTED_FAULT.store(file.map.as_ptr().addr(), RELAXED);
        match cause {
            "unguarded" => file.keep_pages(0),
            "released" => {
                drop(file.guard());
                file.keep_pages(0);
            }
            // SAFETY: sends a signal to this thread.
            "sent" => assert_eq!(unsafe { libc::raise(libc::SIGBUS) }, 0),
            #[cfg(target_os = "linux")]
            "sent-at" => raise_at(libc::SI_QUEUE, other.map.as_ptr()),
            #[cfg(target_os = "linux")]
            "misaligned" => raise_at(libc::BUS_ADRALN, other.map.as_ptr()),
            _ => panic!("{cause}"),
        }
        assert_eq!(file.load(0), 100);
        if previous == "ignore" {
            assert_eq!(other.load(0), 0);
            assert!(other_guard.is_lost(), "the handler is still there");
        }
        exit(SURVIVED.unwrap());
    }

    #[test]
    fn a_stack_overflow_is_still_reported() {
        if role().is_none() {
            let output = child("a_stack_overflow_is_still_reported", "child");
            let text = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
            assert!(text.contains("thread 'deep' "), "{text}");
            assert!(text.contains("has overflowed its stack"), "{text}");
            return;
        }
        fn fall(depth: u64) -> u64 {
            let frame = hint::black_box([depth; 64]);
            if depth == u64::MAX { 0 } else { fall(depth + 1) + frame[0] }
        }
        let file = Mapped::new(1);
        let guard = file.guard();
        file.keep_pages(0);
        assert_eq!(file.load(0), 0);
        assert!(guard.is_lost());
        let deep = thread::Builder::new().name("deep".to_owned()).spawn(|| fall(0)).unwrap();
        let _ = deep.join();
        exit(0);
    }
}
