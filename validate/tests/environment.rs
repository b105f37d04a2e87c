//! Test of NCCL's environment variables in a process. It is a separate test program, because the variables must be
//! reserved while the process has a single thread.
#![expect(unsafe_code, reason = "reads the environment as C does")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::ffi::{CStr, CString, c_char};

use fabricast_validate::nccl::{ForcedChoice, reserve};

/// Reads a variable as NCCL does.
fn read(name: &str) -> Option<String> {
    unsafe extern "C" {
        fn getenv(name: *const c_char) -> *const c_char;
    }
    let name = CString::new(name).unwrap();
    // SAFETY: a zero-terminated text; the environment does not move after it was reserved.
    let value = unsafe { getenv(name.as_ptr()) };
    // SAFETY: null, or a zero-terminated text.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_str().unwrap().to_owned())
}

fn main() {
    // With `--list`, the program lists no tests.
    if std::env::args().any(|argument| argument == "--list") {
        return;
    }
    // On other systems the number of threads is not known.
    if !cfg!(target_os = "linux") {
        return;
    }
    let usual: Vec<(String, String)> =
        std::env::vars().filter(|(name, _)| !name.starts_with("NCCL_") && !name.starts_with("NVSHMEM_")).collect();
    let before = ["NCCL_ALGO", "NCCL_PROTO", "NCCL_NVLS_ENABLE"].map(read);
    reserve().unwrap();
    reserve().unwrap();
    assert_eq!(["NCCL_ALGO", "NCCL_PROTO", "NCCL_NVLS_ENABLE"].map(read), before);
    let forced = ForcedChoice { algorithm: Some("Ring".to_owned()), ..ForcedChoice::default() };
    // Another thread reads the variable concurrently, and must see either the previous value or the new one.
    let reads = std::thread::scope(|scope| {
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let reader = scope.spawn(move || {
            let mut reads = 0_u64;
            while receiver.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) || reads == 0 {
                assert_eq!(read("PATH").is_some(), std::env::var_os("PATH").is_some());
                let _ = read("NCCL_ALGO");
                reads += 1;
            }
            reads
        });
        for _ in 0..1000 {
            let values =
                forced.with_environment(|| (read("NCCL_ALGO"), read("NCCL_PROTO"), read("NCCL_NVLS_ENABLE"))).unwrap();
            assert_eq!(values, (Some("Ring".to_owned()), before[1].clone(), Some("0".to_owned())));
            assert_eq!(["NCCL_ALGO", "NCCL_PROTO", "NCCL_NVLS_ENABLE"].map(read), before);
        }
        drop(sender);
        reader.join().unwrap()
    });
    assert!(reads > 0);
    assert!(usual.iter().all(|(name, value)| read(name).as_ref() == Some(value)));
}
