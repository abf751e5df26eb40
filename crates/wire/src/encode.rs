//! Messages into frames. The order of fields here is the definition; docs/formats/wire.md describes
//! it.

use crate::coding::{Frame, Writer};
use crate::format::{ClientKind, ERROR_TEXT_BYTES_MAX_WRITTEN, MAGIC, NAME_BYTES_MAX, ServerKind};
use crate::message::{
    ClientMessage, ErrorCode, Hello, HelloReply, Notice, PushEncoding, PushHeader, PushPiece, Reply, Request,
    ServerMessage,
};
use crate::volume::coding as volume;

/// The frame of a client's message.
pub(crate) fn client(message: &ClientMessage) -> Frame {
    let writer = |kind: ClientKind| Writer::new(kind as u8);
    match message {
        ClientMessage::Hello(hello) => client_hello(hello),
        ClientMessage::Request { request, ask } => client_request(writer(ask.kind()).u32(request.0), ask),
        ClientMessage::Cancel { request } => writer(ClientKind::Cancel).u32(request.0).finish(),
        ClientMessage::Hurry { request } => writer(ClientKind::Hurry).u32(request.0).finish(),
        ClientMessage::Ping { nonce } => writer(ClientKind::Ping).u64(*nonce).finish(),
        ClientMessage::Notice(notice) => client_notice(notice),
        ClientMessage::PutMeta { request, offset, bytes } => {
            writer(ClientKind::PutMeta).u32(request.0).u64(*offset).finish_with(bytes.clone())
        }
        ClientMessage::PutBlock { request, block, bytes } => {
            writer(ClientKind::PutBlock).u32(request.0).u32(block.0).finish_with(bytes.clone())
        }
        ClientMessage::PutCommit { request } => writer(ClientKind::PutCommit).u32(request.0).finish(),
    }
}

fn client_notice(notice: &Notice) -> Frame {
    let writer = |kind: ClientKind| Writer::new(kind as u8);
    match notice {
        Notice::Touch { image, token, pages } => writer(ClientKind::Touch).u32(image.0).u128(token.0).pages(pages),
        Notice::Hint { image, token, pages } => writer(ClientKind::Hint).u32(image.0).u128(token.0).pages(pages),
        Notice::TokenEnd { image, token } => writer(ClientKind::TokenEnd).u32(image.0).u128(token.0),
        Notice::Credit { stream, bytes } => writer(ClientKind::Credit).u32(stream.0).u32(*bytes),
        Notice::StopPush { stream } => writer(ClientKind::StopPush).u32(stream.0),
        Notice::FileClose { volume, file } => writer(ClientKind::FileClose).u32(volume.0).u32(file.0),
        Notice::FileShare { volume, file, share } => {
            volume::write_share(writer(ClientKind::FileShare).u32(volume.0).u32(file.0), *share)
        }
        Notice::DeviceSpeed { round_trip, zstd, lz4 } => {
            writer(ClientKind::DeviceSpeed).u32(*round_trip).u32(*zstd).u32(*lz4)
        }
        Notice::Bearer(bearer) => {
            let text = cut(bearer.reveal(), NAME_BYTES_MAX);
            writer(ClientKind::Bearer).u8(text.len() as u8).raw(text.as_bytes())
        }
        Notice::RateLimit { bytes_per_second } => writer(ClientKind::RateLimit).u64(*bytes_per_second),
    }
    .finish()
}

fn client_hello(hello: &Hello) -> Frame {
    Writer::new(ClientKind::Hello as u8)
        .raw(&MAGIC)
        .u16(hello.version)
        .u128(hello.device)
        .u64(hello.features)
        .u32(hello.frame_bytes_max)
        .u8(hello.window_log_max)
        .u32(hello.push_bytes_max)
        .finish()
}

fn client_request(writer: Writer, ask: &Request) -> Frame {
    match ask {
        Request::Open { name } | Request::VolumeOpen { name } => writer.u8(name.len() as u8).raw(name.as_bytes()),
        Request::Volume { volume, ask } => return volume::write_ask(writer.u32(volume.0), ask),
        Request::MetaRead { image, offset, bytes } => writer.u32(image.0).u64(*offset).u32(*bytes),
        Request::PullBlock { image, token, page, block, force, speculative } => {
            let flags = u8::from(*force) | u8::from(*speculative) << 1;
            writer.u32(image.0).u128(token.0).u64(page.to_u64()).u32(block.0).u8(flags)
        }
        Request::PullPages { image, token, pages, force } => {
            writer.u32(image.0).u128(token.0).u8(u8::from(*force)).pages(pages)
        }
        Request::List | Request::Status => writer,
        Request::TrustRead { name, known } => {
            return writer.u8(name.len() as u8).raw(name.as_bytes()).finish_with(known.clone());
        }
        Request::TrustWrite { name, files } => {
            return writer.u8(name.len() as u8).raw(name.as_bytes()).finish_with(files.clone());
        }
        Request::Manage { name, ask } => ask.write(writer.u8(name.len() as u8).raw(name.as_bytes())),
        Request::PutOpen { name, file_bytes, metadata_offset, metadata_bytes } => {
            writer.u64(*file_bytes).u64(*metadata_offset).u64(*metadata_bytes).u8(name.len() as u8).raw(name.as_bytes())
        }
    }
    .finish()
}

/// The frame of a server's message.
pub(crate) fn server(message: &ServerMessage) -> Frame {
    let writer = |kind: ServerKind| Writer::new(kind as u8);
    match message {
        ServerMessage::Hello(HelloReply { version, features, frame_bytes_max }) => {
            writer(ServerKind::HelloReply).raw(&MAGIC).u16(*version).u64(*features).u32(*frame_bytes_max).finish()
        }
        ServerMessage::Reply { request, reply } => server_reply(writer(reply.kind()).u32(request.0), reply),
        ServerMessage::Pong { nonce } => writer(ServerKind::Pong).u64(*nonce).finish(),
        ServerMessage::Start { image, offset, bytes } => {
            writer(ServerKind::Start).u32(image.0).u64(*offset).finish_with(bytes.clone())
        }
        ServerMessage::Hashes { image, proof } => writer(ServerKind::Hashes).u32(image.0).finish_with(proof.clone()),
        ServerMessage::PushStart { stream, push } => {
            let volume = push.encoding == PushEncoding::Volume;
            let kind = if volume { ServerKind::VolumePushStart } else { ServerKind::PushStart };
            push_start(writer(kind).u32(stream.0), push)
        }
        ServerMessage::Push(piece) => push(ServerKind::Push, piece),
        ServerMessage::VolumePush(piece) => push(ServerKind::VolumePush, piece),
        ServerMessage::VolumeError { request, code, text } => {
            error(writer(ServerKind::VolumeError).u32(request.0), *code, text)
        }
        ServerMessage::PushEnd { stream, reason } => {
            writer(ServerKind::PushEnd).u32(stream.0).u8(*reason as u8).finish()
        }
        ServerMessage::PutNeed { request, ranges, last } => {
            writer(ServerKind::PutNeed).u32(request.0).u8(u8::from(*last)).ranges(ranges).finish()
        }
        ServerMessage::PutProgress { request, bytes } => {
            writer(ServerKind::PutProgress).u32(request.0).u64(*bytes).finish()
        }
    }
}

fn server_reply(writer: Writer, reply: &Reply) -> Frame {
    match reply {
        Reply::Opened { image, id, file_bytes, metadata_offset, metadata_bytes } => {
            let writer = writer.u32(image.0).raw(&id.0).u64(*file_bytes);
            writer.u64(*metadata_offset).u64(*metadata_bytes).finish()
        }
        Reply::MetaData { offset, bytes } => writer.u64(*offset).finish_with(bytes.clone()),
        Reply::Block { block, bytes } | Reply::Decoded { block, bytes } => {
            writer.u32(block.0).finish_with(bytes.clone())
        }
        Reply::Pages { codec, bytes } => writer.u8(*codec).finish_with(bytes.clone()),
        Reply::OnTheWay { stream } => writer.u32(stream.0).finish(),
        Reply::Listing { json } | Reply::Status { json } | Reply::Managed { json } => writer.finish_with(json.clone()),
        Reply::PutDone { id } => writer.raw(&id.0).finish(),
        Reply::TrustFiles { codec, raw_bytes, bytes } => writer.u8(*codec).u32(*raw_bytes).finish_with(bytes.clone()),
        Reply::TrustWritten => writer.finish(),
        Reply::VolumeOpened { volume, id, block_bytes, writable, nonce } => {
            writer.u32(volume.0).u128(*id).u32(*block_bytes).u8(u8::from(*writable)).u128(*nonce).finish()
        }
        Reply::Volume(reply) => volume::write_reply(writer, reply),
        Reply::Error { code, text } => error(writer, *code, text),
    }
}

fn error(writer: Writer, code: ErrorCode, text: &str) -> Frame {
    let text = cut(text, ERROR_TEXT_BYTES_MAX_WRITTEN);
    writer.u16(code.to_u16()).u16(text.len() as u16).raw(text.as_bytes()).finish()
}

/// The frame of one piece of a push stream, of the kind Push or VolumePush.
pub(crate) fn push(kind: ServerKind, piece: &PushPiece) -> Frame {
    let writer = Writer::new(kind as u8).u32(piece.stream.0).u32(piece.segment.0);
    writer.pages(&piece.pages).finish_with(piece.bytes.clone())
}

fn push_start(writer: Writer, push: &PushHeader) -> Frame {
    writer
        .u32(push.image.0)
        .u128(push.token.0)
        .u64(push.action.0)
        .u8(push.encoding as u8)
        .u8(push.window_log)
        .u8(u8::from(push.audit))
        .finish()
}

/// The longest prefix of at most `bytes_max` bytes that ends between two characters.
pub(crate) fn cut(text: &str, bytes_max: usize) -> &str {
    let end = (0..=bytes_max.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}
