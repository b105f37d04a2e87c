//! NCCL's variables in the environment of a process: a program of its own, since they get their places while it has one thread.
#![expect(unsafe_code, reason = "reads the environment as C does")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::ffi::{CStr, CString, c_char};

use fabricast_validate::nccl::{Forced, reserve};

/// A variable as NCCL reads it.
fn read(name: &str) -> Option<String> {
    unsafe extern "C" {
        fn getenv(name: *const c_char) -> *const c_char;
    }
    let name = CString::new(name).unwrap();
    // SAFETY: a text that ends with a zero; nobody moves the environment after it was reserved.
    let value = unsafe { getenv(name.as_ptr()) };
    // SAFETY: null, or a text that ends with a zero.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_str().unwrap().to_owned())
}

fn main() {
    // As with `--list`, which lists no test.
    if std::env::args().any(|argument| argument == "--list") {
        return;
    }
    // (Elsewhere it is not known how many threads there are.)
    if !cfg!(target_os = "linux") {
        return;
    }
    let usual: Vec<(String, String)> =
        std::env::vars().filter(|(name, _)| !name.starts_with("NCCL_") && !name.starts_with("NVSHMEM_")).collect();
    let before = ["NCCL_ALGO", "NCCL_PROTO", "NCCL_NVLS_ENABLE"].map(read);
    reserve().unwrap();
    reserve().unwrap();
    assert_eq!(["NCCL_ALGO", "NCCL_PROTO", "NCCL_NVLS_ENABLE"].map(read), before);
    let forced = Forced { algorithm: Some("Ring".to_owned()), ..Forced::default() };
    // Other threads read all the while, and see the value of before or that of now.
    let reads = std::thread::scope(|scope| {
        let (tell, heard) = std::sync::mpsc::channel::<()>();
        let reader = scope.spawn(move || {
            let mut reads = 0_u64;
            while heard.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) || reads == 0 {
                assert_eq!(read("PATH").is_some(), std::env::var_os("PATH").is_some());
                let _ = read("NCCL_ALGO");
                reads += 1;
            }
            reads
        });
        for _ in 0..1000 {
            let seen = forced.around(|| (read("NCCL_ALGO"), read("NCCL_PROTO"), read("NCCL_NVLS_ENABLE"))).unwrap();
            assert_eq!(seen, (Some("Ring".to_owned()), before[1].clone(), Some("0".to_owned())));
            assert_eq!(["NCCL_ALGO", "NCCL_PROTO", "NCCL_NVLS_ENABLE"].map(read), before);
        }
        drop(tell);
        reader.join().unwrap()
    });
    assert!(reads > 0);
    assert!(usual.iter().all(|(name, value)| read(name).as_ref() == Some(value)));
}
