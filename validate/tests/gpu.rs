//! Tests of the driver layer and NCCL on real GPUs. Without GPUs, every test prints that it is skipped, and passes.
#![expect(unsafe_code, reason = "kernels are launched and NCCL is called")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot go on has failed, and says what it skips"
)]

use std::sync::Arc;
use std::time::Duration;

use fabricast_sim::schedule::{DataType, ReduceOp};
use fabricast_topologies::Bytes;
use fabricast_validate::cuda::{
    Access, Arguments, Context, CudaError, DeviceMemory, Driver, Event, Graph, HostMemory, Launch, LaunchMode, Module,
    Stream, WaitCondition, Watchdog, compile, enable_peer_access_between, team,
};
use fabricast_validate::nccl::{Communicator, CommunicatorConfig, Nccl, NcclError, Operands, Operation, WindowMemory};

const PATIENCE: Watchdog = Watchdog::new(Duration::from_secs(20));

/// Returns contexts of `count` GPUs with direct peer access. Returns `None` and prints the reason if there are none.
fn gpus(count: usize) -> Option<Vec<Arc<Context>>> {
    let driver = match Driver::load() {
        Ok(driver) => driver,
        Err(error) => {
            println!("skipped: {error}");
            return None;
        }
    };
    let devices = driver.devices().unwrap();
    if devices.len() < count {
        println!("skipped: {count} GPUs are needed, {} are there", devices.len());
        return None;
    }
    let is_connected = |a: usize, b: usize| a == b || devices[a].path_to(devices[b]).unwrap().access == Access::Direct;
    if !(0..count).all(|a| (0..count).all(|b| is_connected(a, b))) {
        println!("skipped: the GPUs do not reach each other's memory");
        return None;
    }
    let contexts: Vec<_> = devices[..count].iter().map(|device| device.context().unwrap()).collect();
    enable_peer_access_between(&contexts).unwrap();
    Some(contexts)
}

/// Returns contexts of all GPUs. Returns `None` and prints the reason if there are fewer than two.
fn all_gpus() -> Option<Vec<Arc<Context>>> {
    let available = Driver::load().map_or(2, Driver::device_count);
    gpus(available.max(2))
}

fn wait(stream: &Stream) {
    PATIENCE.wait_for(stream, &|| "a test".to_owned()).unwrap();
}

fn words(values: impl IntoIterator<Item = u32>) -> Vec<u8> {
    values.into_iter().flat_map(u32::to_ne_bytes).collect()
}

fn floats(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_ne_bytes).collect()
}

fn download(stream: &Stream, memory: &DeviceMemory) -> Vec<u8> {
    let mut bytes = vec![0xEE; memory.length().0 as usize];
    stream.download(&mut bytes, memory.all()).unwrap();
    bytes
}

#[test]
fn transfers_round_trip() {
    let Some(contexts) = gpus(1) else { return };
    let stream = Stream::new(&contexts[0]).unwrap();
    let memory = DeviceMemory::new(&contexts[0], Bytes(4096)).unwrap();
    let content = words(0..1024);
    stream.upload(memory.all(), &content).unwrap();
    assert_eq!(download(&stream, &memory), content);
    stream.fill(memory.part(Bytes(100), Bytes(8)).unwrap(), 0x7F).unwrap();
    stream.fill_words(memory.part(Bytes(400), Bytes(8)).unwrap(), 0x0102_0304).unwrap();
    let host = HostMemory::new(&contexts[0], Bytes(4096)).unwrap();
    stream.copy_to_host(&host, Bytes(0), memory.all()).unwrap();
    wait(&stream);
    let mut received = vec![0; 4096];
    host.read(Bytes(0), &mut received).unwrap();
    let mut expected = content;
    expected[100..108].fill(0x7F);
    expected[400..408].copy_from_slice(&words([0x0102_0304; 2]));
    assert_eq!(received, expected);
    assert!(matches!(memory.part(Bytes(4000), Bytes(97)), Err(CudaError::Range { .. })));
}

#[test]
fn invalid_calls_name_the_function_and_device() {
    let Some(contexts) = gpus(1) else { return };
    let context = &contexts[0];
    let error = DeviceMemory::new(context, Bytes(1 << 50)).unwrap_err();
    assert!(matches!(error, CudaError::OutOfMemory { device: 0, free: Some(_), .. }), "{error}");
    let driver = Driver::load().unwrap();
    assert!(matches!(driver.device(999), Err(CudaError::NoSuchDevice { ordinal: 999, .. })));
    let Ok(code) = compile::compile("extern \"C\" __global__ void one() {}", context.device().arch().unwrap(), &[])
    else {
        println!("skipped: no compiler");
        return;
    };
    let module = Module::load(context, &code).unwrap();
    let error = module.function("two").unwrap_err();
    assert!(error.to_string().contains("cuModuleGetFunction failed on GPU 0: CUDA_ERROR_NOT_FOUND"), "{error}");
    let stream = Stream::new(context).unwrap();
    let one = module.function("one").unwrap();
    // SAFETY: the kernel has no arguments; the launch is rejected.
    let error = unsafe { one.launch(&stream, Launch::without_shared_memory(1, 4096), &Arguments::new()) }.unwrap_err();
    assert!(error.to_string().contains("cuLaunchKernel failed on GPU 0"), "{error}");
    // The context remains usable.
    // SAFETY: the kernel has no arguments and no effect.
    unsafe { one.launch(&stream, Launch::without_shared_memory(1, 32), &Arguments::new()) }.unwrap();
    wait(&stream);
}

const ADD: &str = r#"
extern "C" __global__ void add(unsigned *to, const unsigned *from, unsigned what, unsigned long long count) {
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    if (i < count) to[i] = from[i] + what;
}
extern "C" __global__ void until(volatile unsigned *flag) { while (*flag == 0) {} }
"#;

#[test]
fn graphs_replay_kernels_and_copies() {
    let Some(contexts) = gpus(1) else { return };
    let context = &contexts[0];
    let Ok(code) = compile::compile(ADD, context.device().arch().unwrap(), &[]) else {
        println!("skipped: no compiler");
        return;
    };
    let add = Module::load(context, &code).unwrap().function("add").unwrap();
    let stream = Stream::new(context).unwrap();
    let (a, b) = (DeviceMemory::new(context, Bytes(4000)).unwrap(), DeviceMemory::new(context, Bytes(4000)).unwrap());
    stream.upload(a.all(), &words(0..1000)).unwrap();
    let shape = Launch { mode: LaunchMode::Cooperative, ..Launch::without_shared_memory(4, 256) };
    let arguments = Arguments::new().pointer(b.address()).pointer(a.address()).u32(7).u64(1000);
    let work = || {
        // SAFETY: the kernel's arguments; both buffers have a thousand words and outlive the graph.
        unsafe { add.launch(&stream, shape, &arguments) }?;
        stream.copy(a.all(), b.all())
    };
    // SAFETY: both buffers are borrowed by the work.
    let graph = unsafe { Graph::capture::<CudaError>(&stream, &work) }.unwrap();
    graph.upload(&stream).unwrap();
    let (start, end) = (Event::timing(context).unwrap(), Event::timing(context).unwrap());
    stream.record(&start).unwrap();
    (0..5).for_each(|_| graph.launch(&stream).unwrap());
    stream.record(&end).unwrap();
    wait(&stream);
    assert!(end.since(&start).unwrap().0 > 0);
    assert_eq!(download(&stream, &a), words((0..1000).map(|i| i + 35)));
    // A failing capture leaves the stream unchanged.
    let failing = || Err(CudaError::Abandoned);
    // SAFETY: nothing is captured.
    let failed = unsafe { Graph::capture(&stream, &failing) };
    assert_eq!(failed.unwrap_err(), CudaError::Abandoned);
    stream.fill(a.all(), 0).unwrap();
    wait(&stream);
}

#[test]
fn hanging_kernels_are_reported_and_abandoned() {
    let Some(contexts) = gpus(1) else { return };
    // A context without other users, because it is abandoned.
    let context = &contexts[0];
    let Ok(code) = compile::compile(ADD, context.device().arch().unwrap(), &[]) else {
        println!("skipped: no compiler");
        return;
    };
    let until = Module::load(context, &code).unwrap().function("until").unwrap();
    let flag = HostMemory::new(context, Bytes(4)).unwrap();
    let stream = Stream::new(context).unwrap();
    // SAFETY: the kernel's argument, a word that outlives the kernel.
    unsafe { until.launch(&stream, Launch::without_shared_memory(1, 1), &Arguments::new().pointer(flag.address())) }
        .unwrap();
    let error = Watchdog::new(Duration::from_millis(50)).wait_for(&stream, &|| "rank 0, waiting for a word".into());
    assert!(error.unwrap_err().to_string().contains("rank 0, waiting for a word"));
    flag.store(Bytes(0), 1).unwrap();
    wait(&stream);
}

#[test]
fn streams_signal_each_other_across_gpus() {
    let Some(contexts) = gpus(2) else { return };
    let flags = DeviceMemory::new(&contexts[1], Bytes(64)).unwrap();
    let (from, to) = (
        DeviceMemory::new(&contexts[0], Bytes(1 << 20)).unwrap(),
        DeviceMemory::new(&contexts[1], Bytes(1 << 20)).unwrap(),
    );
    let (sender, receiver) = (Stream::new(&contexts[0]).unwrap(), Stream::new(&contexts[1]).unwrap());
    receiver.fill(flags.all(), 0).unwrap();
    receiver.fill(to.all(), 0).unwrap();
    wait(&receiver);
    let staging = HostMemory::new(&contexts[1], Bytes(1 << 20)).unwrap();
    let word = flags.part(Bytes(4), Bytes(4)).unwrap();
    receiver.wait_word(word, 3, WaitCondition::AtLeast).unwrap();
    receiver.copy_to_host(&staging, Bytes(0), to.all()).unwrap();
    sender.fill(from.all(), 0x5A).unwrap();
    sender.copy(to.all(), from.all()).unwrap();
    sender.write_word(word, 3).unwrap();
    PATIENCE.wait(&[(&sender, &|| "sender".into()), (&receiver, &|| "receiver".into())]).unwrap();
    let mut received = vec![0; 1 << 20];
    staging.read(Bytes(0), &mut received).unwrap();
    assert!(received.iter().all(|&byte| byte == 0x5A));
}

/// Returns NCCL. Returns `None` and prints the reason if the library is missing.
fn nccl() -> Option<Arc<Nccl>> {
    let choice = std::env::var_os("FABRICAST_NCCL").map(std::path::PathBuf::from);
    Nccl::open(choice.as_deref()).map_err(|error| println!("skipped: {error}")).ok()
}

#[test]
fn nccl_runs_every_collective() {
    let (Some(contexts), Some(nccl)) = (all_gpus(), nccl()) else { return };
    println!("NCCL {} at {}", nccl.version(), nccl.path().display());
    let id = nccl.unique_id().unwrap();
    let (count, ranks) = (1000, contexts.len());
    let config = CommunicatorConfig { max_blocks: Some(8), ..CommunicatorConfig::default() };
    team::run(&contexts, &PATIENCE, |member| -> Result<(), NcclError> {
        let rank = member.rank;
        let communicator = Communicator::new(&nccl, member.context, id, rank, member.size, config)?;
        let stream = Stream::new(member.context)?;
        let size = Bytes((4 * count * ranks) as u64);
        let (input, output) = (DeviceMemory::new(member.context, size)?, DeviceMemory::new(member.context, size)?);
        let value = |rank: usize, i: usize| ((i * 7 + rank * 13) % 100) as f32;
        let sum = |i: usize| (0..ranks).map(|rank| value(rank, i)).sum::<f32>();
        let total = count * ranks;
        stream.upload(input.all(), &floats((0..total).map(|i| value(rank, i))))?;
        let check = |name: &str, expected: Vec<f32>| -> Result<(), NcclError> {
            member.watchdog.wait_for(&stream, &|| format!("rank {rank}, {name}"))?;
            communicator.health()?;
            let actual = download(&stream, &output);
            assert_eq!(actual[..expected.len() * 4], floats(expected), "{name}, rank {rank}");
            stream.fill(output.all(), 0xFF)?;
            Ok(())
        };
        let (to, from, f32, op) = (output.address(), input.address(), DataType::F32, ReduceOp::Sum);
        let operands = |count| Operands { input: from, output: to, count, dtype: f32 };
        // SAFETY: both buffers have `count` floats per rank, which suffices for all of these calls.
        let call = |operation, count| unsafe { communicator.collective(&stream, operation, operands(count)) };
        // SAFETY: see above.
        unsafe {
            call(Operation::AllReduce(op), total)?;
            check("all_reduce", (0..total).map(sum).collect())?;
            call(Operation::AllReduce(ReduceOp::Max), total)?;
            let largest = |i: usize| (0..ranks).map(|rank| value(rank, i)).fold(0.0, f32::max);
            check("all_reduce max", (0..total).map(largest).collect())?;
            call(Operation::AllGather, count)?;
            check("all_gather", (0..total).map(|i| value(i / count, i % count)).collect())?;
            call(Operation::ReduceScatter(op), count)?;
            check("reduce_scatter", (0..count).map(|i| sum(rank * count + i)).collect())?;
            call(Operation::Broadcast(1), total)?;
            check("broadcast", (0..total).map(|i| value(1, i)).collect())?;
            call(Operation::Reduce(op, 0), total)?;
            check("reduce", if rank == 0 { (0..total).map(sum).collect() } else { Vec::new() })?;
            communicator.all_to_all(&stream, operands(count))?;
            check("all_to_all", (0..total).map(|i| value(i / count, rank * count + i % count)).collect())?;
            nccl.group(|| {
                communicator.send(&stream, from, count, f32, (rank + 1) % ranks)?;
                communicator.recv(&stream, to, count, f32, (rank + ranks - 1) % ranks)
            })?;
            check("send_recv", (0..count).map(|i| value((rank + ranks - 1) % ranks, i)).collect())?;
        }
        member.barrier()?;
        Ok(())
    })
    .unwrap();
}

#[test]
fn nccl_reduces_in_registered_windows_and_graphs() {
    let (Some(contexts), Some(nccl)) = (all_gpus(), nccl()) else { return };
    let id = nccl.unique_id().unwrap();
    let ranks = contexts.len();
    team::run(&contexts, &PATIENCE, |member| -> Result<(), NcclError> {
        let mut communicator =
            Communicator::new(&nccl, member.context, id, member.rank, ranks, CommunicatorConfig::default())?;
        let size = Bytes(1 << 20);
        let memory = match WindowMemory::new(&nccl, member.context, size) {
            Err(NcclError::Library(error)) => {
                println!("skipped: {error}");
                return Ok(());
            }
            window => Arc::new(window?),
        };
        communicator.register(&memory)?;
        let stream = Stream::new(member.context)?;
        let (source, result) = (DeviceMemory::new(member.context, size)?, DeviceMemory::new(member.context, size)?);
        stream.upload(source.all(), &floats((0..1 << 18).map(|i| ((i + member.rank) % 64) as f32)))?;
        let work = || {
            stream.copy(memory.all(), source.all())?;
            let address = memory.address();
            let floats = Operands { input: address, output: address, count: 1 << 18, dtype: DataType::F32 };
            // SAFETY: the window holds all floats and outlives the graph.
            unsafe { communicator.collective(&stream, Operation::AllReduce(ReduceOp::Sum), floats) }?;
            Ok(stream.copy(result.all(), memory.all())?)
        };
        // SAFETY: the memory is borrowed by the work.
        let graph = unsafe { Graph::capture::<NcclError>(&stream, &work) }?;
        for _ in 0..3 {
            graph.launch(&stream)?;
        }
        member.watchdog.wait_for(&stream, &|| format!("rank {}, in a window", member.rank))?;
        let sum = |i: usize| (0..ranks).map(|rank| ((i + rank) % 64) as f32).sum::<f32>();
        assert_eq!(download(&stream, &result), floats((0..1 << 18).map(sum)));
        member.barrier()?;
        drop(graph);
        member.barrier()?;
        Ok(())
    })
    .unwrap();
}
