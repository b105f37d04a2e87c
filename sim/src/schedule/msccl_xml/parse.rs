//! Parser of the elements of an MSCCL file, in one pass.

use quick_xml::Reader;
use quick_xml::events::Event;

use super::tag::Tag;
use crate::schedule::chunk_numbering::FileChunk;
use crate::schedule::file_format::{FormatError, Source, shortened};
use crate::schedule::json::MAX_RANKS;
use crate::schedule::{Buffer, Collective, Protocol};

/// Maximum number of thread blocks per GPU.
const MAX_BLOCKS: u32 = 1 << 16;

/// Contents of the element `<algo>`: the whole algorithm.
#[derive(Debug)]
pub(super) struct Algo {
    pub(super) name: String,
    pub(super) collective: Collective,
    pub(super) protocol: Protocol,
    pub(super) in_place: bool,
    pub(super) min_bytes: u64,
    pub(super) max_bytes: u64,
    pub(super) root: u32,
    pub(super) gpus: Vec<GpuElement>,
    /// Location of the tag in the text.
    pub(super) span: std::ops::Range<usize>,
}

/// Contents of an element `<gpu>`: buffer sizes and thread blocks of a GPU.
#[derive(Debug, Default)]
pub(super) struct GpuElement {
    pub(super) input_chunks: u32,
    pub(super) output_chunks: u32,
    pub(super) scratch_chunks: u32,
    pub(super) blocks: Vec<BlockElement>,
}

/// Contents of `<tb>`, a thread block.
#[derive(Debug)]
pub(super) struct BlockElement {
    pub(super) send: Option<u32>,
    pub(super) recv: Option<u32>,
    pub(super) channel: u32,
    pub(super) at: usize,
    pub(super) steps: Vec<Step>,
}

/// Type of a step, named by the initials of its actions: receive, reduce, copy, send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepKind {
    Send,
    Receive,
    ReceiveCopySend,
    ReceiveReduceCopy,
    ReceiveReduceSend,
    ReceiveReduceCopySend,
    Copy,
    Reduce,
    Nothing,
}

/// Types of steps by their name in the file.
const KINDS: [(&str, StepKind); 9] = [
    ("s", StepKind::Send),
    ("r", StepKind::Receive),
    ("rcs", StepKind::ReceiveCopySend),
    ("rrc", StepKind::ReceiveReduceCopy),
    ("rrs", StepKind::ReceiveReduceSend),
    ("rrcs", StepKind::ReceiveReduceCopySend),
    ("cpy", StepKind::Copy),
    ("re", StepKind::Reduce),
    ("nop", StepKind::Nothing),
];

impl StepKind {
    /// Returns the name of the type in files, such as `rrc`.
    pub(super) fn name(self) -> &'static str {
        KINDS.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    pub(super) fn sends(self) -> bool {
        matches!(self, Self::Send | Self::ReceiveCopySend | Self::ReceiveReduceSend | Self::ReceiveReduceCopySend)
    }

    pub(super) fn receives(self) -> bool {
        !matches!(self, Self::Send | Self::Copy | Self::Reduce | Self::Nothing)
    }

    /// Returns true if the received data is reduced with the contents of `src`.
    pub(super) fn reduces_received(self) -> bool {
        matches!(self, Self::ReceiveReduceCopy | Self::ReceiveReduceSend | Self::ReceiveReduceCopySend)
    }

    /// Returns two flags: true if the step reads `src`, and true if it writes `dst`.
    fn accesses(self) -> (bool, bool) {
        match self {
            Self::Send | Self::ReceiveReduceSend => (true, false),
            Self::Receive | Self::ReceiveCopySend => (false, true),
            Self::ReceiveReduceCopy | Self::ReceiveReduceCopySend | Self::Copy | Self::Reduce => (true, true),
            Self::Nothing => (false, false),
        }
    }
}

/// Contents of an element `<step>`.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) kind: StepKind,
    /// Source as given in the file; meaningless if the step does not read it.
    pub(super) src: FileChunk,
    /// Destination as given in the file; meaningless if the step does not write it.
    pub(super) dst: FileChunk,
    pub(super) count: u32,
    /// Thread block and step that this step waits for, if any.
    pub(super) waits_for: Option<(u32, u32)>,
    /// True if the step sets its completion flag (`hasdep`).
    pub(super) sets_flag: bool,
    pub(super) at: usize,
}

/// Parses an MSCCL file.
///
/// # Errors
/// [`FormatError`] with line and column.
pub(super) fn parse(source: Source<'_>) -> Result<Algo, FormatError> {
    let mut reader = Reader::from_str(source.text);
    let mut parser = Parser { source, algo: None, parsed_gpus: Vec::new(), path: Vec::new(), gpu: 0 };
    loop {
        let from = reader.buffer_position() as usize;
        let event = reader.read_event().map_err(|error| {
            let at = reader.error_position() as usize;
            source.error(at..at, error.to_string())
        })?;
        let bytes = from..reader.buffer_position() as usize;
        match event {
            Event::Start(start) => {
                let level = parser.open(&start, bytes)?;
                parser.path.push(level);
            }
            Event::Empty(start) => {
                parser.open(&start, bytes)?;
            }
            Event::End(_) => {
                parser.path.pop();
            }
            Event::Eof if !parser.path.is_empty() => {
                return Err(source.error(bytes, "the file ends within an element"));
            }
            Event::Eof => break,
            _ => {}
        }
    }
    parser.finish()
}

/// Nesting level of an element.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Algo,
    Gpu,
    Block,
    Step,
    /// Element that is ignored, as in MSCCL.
    Other,
}

struct Parser<'a> {
    source: Source<'a>,
    algo: Option<Algo>,
    parsed_gpus: Vec<bool>,
    path: Vec<Level>,
    /// Id of the GPU whose element is being read.
    gpu: usize,
}

impl Parser<'_> {
    fn open(
        &mut self,
        start: &quick_xml::events::BytesStart<'_>,
        bytes: std::ops::Range<usize>,
    ) -> Result<Level, FormatError> {
        let name = start.name();
        let level = match (self.path.last(), name.as_ref()) {
            (None, "algo") => Level::Algo,
            (Some(Level::Algo), "gpu") => Level::Gpu,
            (Some(Level::Gpu), "tb") => Level::Block,
            (Some(Level::Block), "step") => Level::Step,
            (None, root) => {
                let message = format!("<{}>; an MSCCL file is one <algo>", shortened(root));
                return Err(self.source.error(bytes, message));
            }
            _ => return Ok(Level::Other),
        };
        let tag = Tag::new(self.source, start, bytes)?;
        match level {
            Level::Algo if self.algo.is_some() => return Err(tag.error("a second <algo>; expected one")),
            Level::Algo => self.open_algo(&tag)?,
            Level::Gpu => self.open_gpu(&tag)?,
            Level::Block => self.open_block(&tag)?,
            Level::Step => self.open_step(&tag)?,
            Level::Other => {}
        }
        Ok(level)
    }

    fn open_algo(&mut self, tag: &Tag<'_>) -> Result<(), FormatError> {
        let limit = i64::from(MAX_RANKS) + 1;
        let ranks = tag.number("ngpus", 1..limit, None)?;
        // Every GPU has an element, so a count that exceeds the number of elements is rejected early.
        let elements = self.source.text.get(tag.bytes.end..).unwrap_or_default().matches("<gpu").count() as i64;
        if ranks > elements {
            return Err(
                tag.attribute_error("ngpus", format!("ngpus: {ranks}, but there are {elements} <gpu> elements"))
            );
        }
        let word = tag.required("coll")?;
        let collective = word.parse().map_err(|error| tag.attribute_error("coll", format!("coll: {error}")))?;
        let word = tag.required("proto")?;
        let protocol = match word.to_ascii_lowercase().as_str() {
            "simple" => Protocol::Simple,
            "ll" => Protocol::Ll,
            "ll128" => Protocol::Ll128,
            _ => {
                let message = format!("proto: `{}`; expected Simple, LL or LL128", shortened(word));
                return Err(tag.attribute_error("proto", message));
            }
        };
        let in_place = tag.flag("inplace", Some(0))?;
        // If a file has only the attribute `inplace`, it is valid only for that use of buffers.
        let out_of_place = tag.flag("outofplace", Some(i64::from(!in_place)))?;
        if !in_place && !out_of_place {
            return Err(
                tag.attribute_error("outofplace", "neither in place nor out of place; expected one of them to be 1")
            );
        }
        let bytes = |attribute, missing| tag.number(attribute, 0..i64::MAX, Some(missing)).map(|n| n as u64);
        let (min_bytes, max_bytes) = (bytes("minBytes", 0)?, bytes("maxBytes", 0)?);
        if max_bytes > 0 && max_bytes < min_bytes {
            return Err(tag.attribute_error("maxBytes", format!("maxBytes {max_bytes} is below minBytes {min_bytes}")));
        }
        self.parsed_gpus = vec![false; ranks as usize];
        self.algo = Some(Algo {
            name: tag.text("name").unwrap_or("msccl").to_owned(),
            collective,
            protocol,
            in_place: !out_of_place,
            min_bytes,
            max_bytes,
            root: tag.number("root", 0..ranks, Some(0))? as u32,
            gpus: (0..ranks).map(|_| GpuElement::default()).collect(),
            span: tag.bytes.clone(),
        });
        Ok(())
    }

    fn open_gpu(&mut self, tag: &Tag<'_>) -> Result<(), FormatError> {
        let ranks = self.parsed_gpus.len();
        let id = tag.index("id")? as usize;
        match self.parsed_gpus.get_mut(id) {
            None => return Err(tag.attribute_error("id", format!("gpu {id} of {ranks}"))),
            Some(seen @ false) => *seen = true,
            Some(true) => return Err(tag.attribute_error("id", format!("gpu {id} is given twice"))),
        }
        self.gpu = id;
        if let Some(gpu) = self.algo.as_mut().and_then(|algo| algo.gpus.get_mut(id)) {
            gpu.input_chunks = tag.index("i_chunks")?;
            gpu.output_chunks = tag.index("o_chunks")?;
            gpu.scratch_chunks = tag.index("s_chunks")?;
        }
        Ok(())
    }

    fn open_block(&mut self, tag: &Tag<'_>) -> Result<(), FormatError> {
        let (ranks, id) = (self.parsed_gpus.len(), self.gpu);
        let Some(gpu) = self.algo.as_mut().and_then(|algo| algo.gpus.get_mut(id)) else { return Ok(()) };
        let (number, expected) = (tag.index("id")?, gpu.blocks.len() as u32);
        if number != expected || number >= MAX_BLOCKS {
            let message = format!("thread block {number} of gpu {id}; expected {expected}, below {MAX_BLOCKS}");
            return Err(tag.attribute_error("id", message));
        }
        let peer = |attribute| {
            let peer = tag.optional_index(attribute)?;
            match peer {
                Some(peer) if peer as usize >= ranks => {
                    Err(tag.attribute_error(attribute, format!("{attribute}: gpu {peer} of {ranks}")))
                }
                Some(peer) if peer as usize == id => {
                    Err(tag.attribute_error(attribute, format!("{attribute}: gpu {peer} is the thread block's own")))
                }
                _ => Ok(peer),
            }
        };
        gpu.blocks.push(BlockElement {
            send: peer("send")?,
            recv: peer("recv")?,
            channel: tag.index("chan")?,
            at: tag.bytes.start,
            steps: Vec::new(),
        });
        Ok(())
    }

    fn open_step(&mut self, tag: &Tag<'_>) -> Result<(), FormatError> {
        let id = self.gpu;
        let Some(algo) = self.algo.as_mut() else { return Ok(()) };
        let in_place = algo.in_place;
        let Some(gpu) = algo.gpus.get_mut(id) else { return Ok(()) };
        let block_number = gpu.blocks.len().saturating_sub(1);
        let limits = (gpu.input_chunks, gpu.output_chunks, gpu.scratch_chunks);
        let Some(block) = gpu.blocks.last_mut() else { return Ok(()) };
        let word = tag.required("type")?;
        let number = block.steps.len();
        let step_name = format!("step {number} ({}) of thread block {block_number} of gpu {id}", shortened(word));
        let Some(kind) = KINDS.iter().find(|(name, _)| *name == word).map(|(_, kind)| *kind) else {
            let known: Vec<&str> = KINDS.iter().map(|(name, _)| *name).collect();
            return Err(
                tag.attribute_error("type", format!("{step_name} is of no known type; expected {}", known.join(", ")))
            );
        };
        if tag.index("s")? as usize != number {
            return Err(tag.attribute_error("s", format!("{step_name} is numbered {}", tag.required("s")?)));
        }
        for (is_active, peer, attribute) in [(kind.sends(), block.send, "send"), (kind.receives(), block.recv, "recv")]
        {
            if is_active && peer.is_none() {
                return Err(tag.error(format!("{step_name} needs a peer, but {attribute} of the thread block is -1")));
            }
        }
        let count = tag.index("cnt")?;
        if count == 0 && kind != StepKind::Nothing {
            return Err(tag.attribute_error("cnt", format!("{step_name} moves no chunk; expected at least 1")));
        }
        let (reads, writes) = kind.accesses();
        let range = |used: bool, buffer_attribute, offset_attribute| {
            let buffer = match tag.required(buffer_attribute)? {
                "i" => Buffer::Input,
                "o" => Buffer::Output,
                "s" => Buffer::Scratch,
                other => {
                    let message =
                        format!("{step_name}: {buffer_attribute} is `{}`; expected i, o or s", shortened(other));
                    return Err(tag.attribute_error(buffer_attribute, message));
                }
            };
            if !used {
                return Ok(FileChunk { buffer, offset: 0 });
            }
            let chunks = match buffer {
                // In place, input and output are one buffer, and a file may declare its chunks as those of either.
                Buffer::Input | Buffer::Output if in_place => limits.0.max(limits.1),
                Buffer::Input => limits.0,
                Buffer::Output => limits.1,
                Buffer::Scratch => limits.2,
            };
            let offset = tag.index(offset_attribute)?;
            if u64::from(offset) + u64::from(count) > u64::from(chunks) {
                let last = u64::from(offset) + u64::from(count) - 1;
                let message = format!("{step_name} uses {buffer} chunk {last} of {chunks}");
                return Err(tag.attribute_error(offset_attribute, message));
            }
            Ok(FileChunk { buffer, offset })
        };
        let src = range(reads, "srcbuf", "srcoff")?;
        let dst = range(writes, "dstbuf", "dstoff")?;
        let waits_for = match tag.optional_index("depid")? {
            Some(on) => Some((on, tag.index("deps")?)),
            None => None,
        };
        let sets_flag = tag.flag("hasdep", Some(0))?;
        block.steps.push(Step { kind, src, dst, count, waits_for, sets_flag, at: tag.bytes.start });
        Ok(())
    }

    fn finish(self) -> Result<Algo, FormatError> {
        let end = self.source.text.len();
        let algo = self.algo.ok_or_else(|| self.source.error(end..end, "no <algo>; expected an MSCCL file"))?;
        match self.parsed_gpus.iter().position(|seen| !seen) {
            Some(id) => Err(self.source.error(algo.span, format!("gpu {id} of {} is missing", algo.gpus.len()))),
            None => Ok(algo),
        }
    }
}
