//! Frames into messages. Every field is checked against its limits: exactly the output of `encode`
//! is accepted.

use bytes::Bytes;
use units::{ActionId, BlockId, ImageId, PageId, RequestId, SegmentIndex, StreamId};

use crate::bearer::Bearer;
use crate::coding::Reader;
use crate::error::WireError;
use crate::format::{
    ClientKind, ERROR_TEXT_BYTES_MAX, FRAME_BYTES_MAX, FRAME_BYTES_MAX_LEAST, HINT_PAGES_MAX, META_READ_BYTES_MAX,
    NEED_RANGES_MAX, PROOF_BYTES_MAX, PUSH_BYTES_MAX, PUSH_PAGES_MAX, START_BYTES_MAX, ServerKind, TOUCH_PAGES_MAX,
    TRUST_FILES_BYTES_MAX, TRUST_KNOWN_BYTES_MAX, VOLUME_BLOCK_BYTES, WINDOW_LOG_MAX,
};
use crate::message::{
    ClientMessage, ErrorCode, Hello, HelloReply, ImageHandle, ManageAsk, Notice, PushEncoding, PushEndReason,
    PushHeader, PushPiece, Reply, Request, ServerMessage,
};
use crate::volume::coding as volume;

/// The message in a client's frame.
pub(crate) fn client(kind: ClientKind, payload: Bytes) -> Result<ClientMessage, WireError> {
    let mut reader = Reader::of_frame(kind.name(), kind as u8, payload)?;
    let message = match kind {
        ClientKind::Hello => ClientMessage::Hello(client_hello(&mut reader)?),
        ClientKind::Ping => ClientMessage::Ping { nonce: reader.u64("nonce")? },
        ClientKind::Cancel => ClientMessage::Cancel { request: request(&mut reader)? },
        ClientKind::Hurry => ClientMessage::Hurry { request: request(&mut reader)? },
        ClientKind::Touch
        | ClientKind::Hint
        | ClientKind::TokenEnd
        | ClientKind::Credit
        | ClientKind::StopPush
        | ClientKind::DeviceSpeed
        | ClientKind::FileClose
        | ClientKind::FileShare
        | ClientKind::Bearer
        | ClientKind::RateLimit => ClientMessage::Notice(notice(kind, &mut reader)?),
        ClientKind::PutMeta => ClientMessage::PutMeta {
            request: request(&mut reader)?,
            offset: reader.u64("offset")?,
            bytes: reader.bulk("bytes", 1, FRAME_BYTES_MAX)?,
        },
        ClientKind::PutBlock => ClientMessage::PutBlock {
            request: request(&mut reader)?,
            block: BlockId(reader.u32("block")?),
            bytes: reader.bulk("bytes", 1, FRAME_BYTES_MAX)?,
        },
        ClientKind::PutCommit => ClientMessage::PutCommit { request: request(&mut reader)? },
        ClientKind::FileOpen
        | ClientKind::FileStat
        | ClientKind::FolderList
        | ClientKind::LinkRead
        | ClientKind::SpaceStat
        | ClientKind::Lock
        | ClientKind::XattrsRead
        | ClientKind::PullBlocks
        | ClientKind::Commit
        | ClientKind::Lease
        | ClientKind::Enrol
        | ClientKind::Prove => {
            let (request, volume) = (request(&mut reader)?, image(&mut reader)?);
            let ask = Request::Volume { volume, ask: volume::read_ask(kind, &mut reader)? };
            ClientMessage::Request { request, ask }
        }
        ClientKind::Open
        | ClientKind::MetaRead
        | ClientKind::PullBlock
        | ClientKind::PullPages
        | ClientKind::List
        | ClientKind::Status
        | ClientKind::TrustRead
        | ClientKind::TrustWrite
        | ClientKind::Manage
        | ClientKind::VolumeOpen
        | ClientKind::PutOpen => {
            ClientMessage::Request { request: request(&mut reader)?, ask: client_request(kind, &mut reader)? }
        }
    };
    reader.end(message)
}

fn notice(kind: ClientKind, reader: &mut Reader) -> Result<Notice, WireError> {
    Ok(match kind {
        ClientKind::Touch => {
            Notice::Touch { image: image(reader)?, token: reader.token()?, pages: reader.pages(TOUCH_PAGES_MAX)? }
        }
        ClientKind::Hint => {
            Notice::Hint { image: image(reader)?, token: reader.token()?, pages: reader.pages(HINT_PAGES_MAX)? }
        }
        ClientKind::TokenEnd => Notice::TokenEnd { image: image(reader)?, token: reader.token()? },
        ClientKind::Credit => {
            let (stream, bytes) = (stream(reader)?, reader.u32("bytes")?);
            reader.check(bytes > 0, "bytes", 0, "at least 1")?;
            Notice::Credit { stream, bytes }
        }
        ClientKind::StopPush => Notice::StopPush { stream: stream(reader)? },
        ClientKind::DeviceSpeed => Notice::DeviceSpeed {
            round_trip: reader.u32("round trip")?,
            zstd: reader.u32("zstd")?,
            lz4: reader.u32("lz4")?,
        },
        ClientKind::FileClose => Notice::FileClose { volume: image(reader)?, file: volume::file_number(reader)? },
        ClientKind::FileShare => {
            let (volume, file) = (image(reader)?, volume::file_number(reader)?);
            Notice::FileShare { volume, file, share: volume::read_share(reader)? }
        }
        ClientKind::Bearer => Notice::Bearer(Bearer::received(reader.name()?)),
        // the caller passes kinds of notices only
        _ => Notice::RateLimit { bytes_per_second: reader.u64("bytes per second")? },
    })
}

fn client_hello(reader: &mut Reader) -> Result<Hello, WireError> {
    reader.magic()?;
    let hello = Hello {
        version: reader.u16("version")?,
        device: reader.u128("device")?,
        features: reader.u64("features")?,
        frame_bytes_max: frame_bytes_max(reader)?,
        window_log_max: reader.u8("window log")?,
        push_bytes_max: reader.u32("push bytes")?,
    };
    let log = hello.window_log_max;
    reader.check(log <= WINDOW_LOG_MAX, "window log", log as u64, "at most 27")?;
    Ok(hello)
}

fn client_request(kind: ClientKind, reader: &mut Reader) -> Result<Request, WireError> {
    Ok(match kind {
        ClientKind::Open => Request::Open { name: reader.name()? },
        ClientKind::VolumeOpen => Request::VolumeOpen { name: reader.name()? },
        ClientKind::MetaRead => {
            let (image, offset, bytes) = (image(reader)?, reader.u64("offset")?, reader.u32("bytes")?);
            let allowed = bytes > 0 && bytes as usize <= META_READ_BYTES_MAX;
            reader.check(allowed, "bytes", bytes as u64, "1 to 1048576")?;
            reader.check(offset.checked_add(bytes as u64).is_some(), "offset", offset, "a range of 64-bit offsets")?;
            Request::MetaRead { image, offset, bytes }
        }
        ClientKind::PullBlock => {
            let (image, token) = (image(reader)?, reader.token()?);
            let (page, block) = (PageId::from_u64(reader.u64("page")?), BlockId(reader.u32("block")?));
            let flags = reader.u8("flags")?;
            reader.check(flags <= 3, "flags", flags as u64, "0 to 3")?;
            Request::PullBlock { image, token, page, block, force: flags & 1 != 0, speculative: flags & 2 != 0 }
        }
        ClientKind::PullPages => {
            let (image, token, force) = (image(reader)?, reader.token()?, reader.flag("flags")?);
            Request::PullPages { image, token, force, pages: reader.pages(PUSH_PAGES_MAX)? }
        }
        ClientKind::Status => Request::Status,
        ClientKind::TrustRead => {
            let bytes = usize::from(reader.u8("name length")?);
            let name = reader.text("name", bytes)?;
            Request::TrustRead { name, known: reader.bulk("known", 1, TRUST_KNOWN_BYTES_MAX)? }
        }
        ClientKind::TrustWrite => {
            let bytes = usize::from(reader.u8("name length")?);
            Request::TrustWrite {
                name: reader.text("name", bytes)?,
                files: reader.bulk("files", 1, TRUST_FILES_BYTES_MAX)?,
            }
        }
        ClientKind::Manage => {
            let bytes = usize::from(reader.u8("name length")?);
            Request::Manage { name: reader.text("name", bytes)?, ask: ManageAsk::read(reader)? }
        }
        ClientKind::PutOpen => {
            let file_bytes = reader.u64("file bytes")?;
            let metadata_offset = reader.u64("metadata offset")?;
            let metadata_bytes = reader.u64("metadata bytes")?;
            let end = metadata_offset.checked_add(metadata_bytes);
            let fits = end.is_some_and(|end| end <= file_bytes);
            reader.check(fits, "metadata bytes", metadata_bytes, "a region within the file")?;
            Request::PutOpen { name: reader.name()?, file_bytes, metadata_offset, metadata_bytes }
        }
        // the caller passes kinds of requests only
        _ => Request::List,
    })
}

/// The message in a server's frame.
pub(crate) fn server(kind: ServerKind, payload: Bytes) -> Result<ServerMessage, WireError> {
    let mut reader = Reader::of_frame(kind.name(), kind as u8, payload)?;
    let message = match kind {
        ServerKind::HelloReply => {
            reader.magic()?;
            ServerMessage::Hello(HelloReply {
                version: reader.u16("version")?,
                features: reader.u64("features")?,
                frame_bytes_max: frame_bytes_max(&mut reader)?,
            })
        }
        ServerKind::Pong => ServerMessage::Pong { nonce: reader.u64("nonce")? },
        ServerKind::Hashes | ServerKind::Start => unasked(kind, &mut reader)?,
        ServerKind::PushStart | ServerKind::VolumePushStart => {
            let (stream, volume) = (stream(&mut reader)?, kind == ServerKind::VolumePushStart);
            ServerMessage::PushStart { stream, push: push_header(&mut reader, volume)? }
        }
        ServerKind::Push => ServerMessage::Push(push_piece(&mut reader)?),
        ServerKind::VolumePush => ServerMessage::VolumePush(push_piece(&mut reader)?),
        ServerKind::VolumeError => {
            let request = request(&mut reader)?;
            let (code, text) = error(&mut reader)?;
            ServerMessage::VolumeError { request, code, text }
        }
        ServerKind::PushEnd => {
            let (stream, number) = (stream(&mut reader)?, reader.u8("reason")?);
            let reason = PushEndReason::from_u8(number);
            let reason = reason.ok_or_else(|| reader.bad("reason", number as u64, "a reason of this version"))?;
            ServerMessage::PushEnd { stream, reason }
        }
        ServerKind::PutNeed => ServerMessage::PutNeed {
            request: request(&mut reader)?,
            last: reader.flag("flags")?,
            ranges: reader.ranges(NEED_RANGES_MAX)?,
        },
        ServerKind::PutProgress => {
            ServerMessage::PutProgress { request: request(&mut reader)?, bytes: reader.u64("bytes")? }
        }
        ServerKind::Error
        | ServerKind::Opened
        | ServerKind::MetaData
        | ServerKind::Block
        | ServerKind::Decoded
        | ServerKind::Pages
        | ServerKind::OnTheWay
        | ServerKind::Listing
        | ServerKind::StatusReply
        | ServerKind::TrustFiles
        | ServerKind::TrustWritten
        | ServerKind::Managed
        | ServerKind::PutDone
        | ServerKind::VolumeOpened
        | ServerKind::FileOpened
        | ServerKind::Attributes
        | ServerKind::Entries
        | ServerKind::LinkTarget
        | ServerKind::Space
        | ServerKind::Locked
        | ServerKind::Xattrs
        | ServerKind::Blocks
        | ServerKind::Committed
        | ServerKind::Leased
        | ServerKind::Enrolled
        | ServerKind::Proven => {
            let request = RequestId(reader.u32("request")?);
            let numbered = request.0 != 0 || kind == ServerKind::Error;
            reader.check(numbered, "request", 0, "at least 1")?;
            ServerMessage::Reply { request, reply: server_reply(kind, &mut reader)? }
        }
    };
    reader.end(message)
}

fn server_reply(kind: ServerKind, reader: &mut Reader) -> Result<Reply, WireError> {
    Ok(match kind {
        ServerKind::Opened => Reply::Opened {
            image: image(reader)?,
            id: ImageId(reader.id("id")?),
            file_bytes: reader.u64("file bytes")?,
            metadata_offset: reader.u64("metadata offset")?,
            metadata_bytes: reader.u64("metadata bytes")?,
        },
        ServerKind::MetaData => {
            Reply::MetaData { offset: reader.u64("offset")?, bytes: reader.bulk("bytes", 1, META_READ_BYTES_MAX)? }
        }
        ServerKind::Block => {
            Reply::Block { block: BlockId(reader.u32("block")?), bytes: reader.bulk("bytes", 1, FRAME_BYTES_MAX)? }
        }
        ServerKind::Decoded => {
            Reply::Decoded { block: BlockId(reader.u32("block")?), bytes: reader.bulk("bytes", 1, FRAME_BYTES_MAX)? }
        }
        ServerKind::Pages => {
            Reply::Pages { codec: reader.u8("codec")?, bytes: reader.bulk("bytes", 1, PUSH_BYTES_MAX)? }
        }
        ServerKind::OnTheWay => Reply::OnTheWay { stream: stream(reader)? },
        ServerKind::Listing => Reply::Listing { json: reader.bulk("json", 0, FRAME_BYTES_MAX)? },
        ServerKind::StatusReply => Reply::Status { json: reader.bulk("json", 0, FRAME_BYTES_MAX)? },
        ServerKind::TrustFiles => {
            let (codec, raw_bytes) = (reader.u8("codec")?, reader.u32("raw bytes")?);
            let fits = raw_bytes as usize <= TRUST_FILES_BYTES_MAX;
            reader.check(fits, "raw bytes", raw_bytes.into(), "at most 524288")?;
            Reply::TrustFiles { codec, raw_bytes, bytes: reader.bulk("bytes", 1, TRUST_FILES_BYTES_MAX)? }
        }
        ServerKind::TrustWritten => Reply::TrustWritten,
        ServerKind::Managed => Reply::Managed { json: reader.bulk("json", 0, FRAME_BYTES_MAX)? },
        ServerKind::PutDone => Reply::PutDone { id: ImageId(reader.id("id")?) },
        ServerKind::VolumeOpened => {
            let (volume, id, block_bytes) = (image(reader)?, reader.u128("id")?, reader.u32("block bytes")?);
            let allowed = block_bytes.is_power_of_two() && VOLUME_BLOCK_BYTES.contains(&block_bytes);
            reader.check(allowed, "block bytes", block_bytes.into(), "a power of two from 512 to 65536")?;
            let (writable, nonce) = (reader.flag("writable")?, reader.u128("nonce")?);
            Reply::VolumeOpened { volume, id, block_bytes, writable, nonce }
        }
        ServerKind::FileOpened
        | ServerKind::Attributes
        | ServerKind::Entries
        | ServerKind::LinkTarget
        | ServerKind::Space
        | ServerKind::Locked
        | ServerKind::Xattrs
        | ServerKind::Blocks
        | ServerKind::Committed
        | ServerKind::Leased
        | ServerKind::Enrolled
        | ServerKind::Proven => Reply::Volume(volume::read_reply(kind, reader)?),
        // the caller passes kinds of replies only
        _ => {
            let (code, text) = error(reader)?;
            Reply::Error { code, text }
        }
    })
}

fn error(reader: &mut Reader) -> Result<(ErrorCode, String), WireError> {
    let code = ErrorCode::from_u16(reader.u16("code")?);
    let bytes = reader.u16("text length")? as usize;
    reader.check(bytes <= ERROR_TEXT_BYTES_MAX, "text length", bytes as u64, "at most 512")?;
    let text = reader.text("text", bytes)?;
    // As one line: a peer must not fake lines of our own, such as hints, where the text is shown.
    Ok((code, units::printable_line(text.as_bytes()).into_owned()))
}

/// What a server sends before somebody asks for it.
fn unasked(kind: ServerKind, reader: &mut Reader) -> Result<ServerMessage, WireError> {
    let image = image(reader)?;
    Ok(match kind {
        ServerKind::Start => {
            let offset = reader.u64("offset")?;
            ServerMessage::Start { image, offset, bytes: reader.bulk("bytes", 1, START_BYTES_MAX)? }
        }
        // the caller passes these two kinds only
        _ => ServerMessage::Hashes { image, proof: reader.bulk("proof", 1, PROOF_BYTES_MAX)? },
    })
}

fn push_piece(reader: &mut Reader) -> Result<PushPiece, WireError> {
    Ok(PushPiece {
        stream: stream(reader)?,
        segment: SegmentIndex(reader.u32("segment")?),
        pages: reader.pages(PUSH_PAGES_MAX)?,
        bytes: reader.bulk("bytes", 1, PUSH_BYTES_MAX)?,
    })
}

fn push_header(reader: &mut Reader, volume: bool) -> Result<PushHeader, WireError> {
    let (image, token) = (image(reader)?, reader.token()?);
    let action = ActionId(reader.u64("action")?);
    let number = reader.u8("encoding")?;
    let encoding = PushEncoding::from_u8(number);
    let encoding = encoding.ok_or_else(|| reader.bad("encoding", number as u64, "0 to 3"))?;
    let fits = (encoding == PushEncoding::Volume) == volume;
    reader.check(fits, "encoding", number as u64, "2 for volumes, and for them only")?;
    let window_log = reader.u8("window log")?;
    let fits = match encoding {
        PushEncoding::Stored | PushEncoding::Volume => window_log == 0,
        PushEncoding::ZstdStream => window_log > 0,
        PushEncoding::Pieces => true,
    };
    let allowed = window_log <= WINDOW_LOG_MAX && fits;
    reader.check(allowed, "window log", window_log as u64, "0 without zstd, else 1 to 27")?;
    Ok(PushHeader { image, token, action, encoding, window_log, audit: reader.flag("flags")? })
}

fn request(reader: &mut Reader) -> Result<RequestId, WireError> {
    let number = reader.u32("request")?;
    reader.check(number != 0, "request", 0, "at least 1")?;
    Ok(RequestId(number))
}

fn stream(reader: &mut Reader) -> Result<StreamId, WireError> {
    let number = reader.u32("stream")?;
    reader.check(number != 0, "stream", 0, "at least 1")?;
    Ok(StreamId(number))
}

fn image(reader: &mut Reader) -> Result<ImageHandle, WireError> {
    Ok(ImageHandle(reader.u32("image")?))
}

fn frame_bytes_max(reader: &mut Reader) -> Result<u32, WireError> {
    let bytes = reader.u32("frame bytes")?;
    reader.check(bytes as usize >= FRAME_BYTES_MAX_LEAST, "frame bytes", bytes as u64, "at least 163840")?;
    Ok(bytes)
}
