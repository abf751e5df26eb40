//! A blocking client: it opens images, demands pages as a mount would, takes pushes, verifies every
//! byte, uploads.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bytes::Bytes;
use codec::StreamDecoder;
use image::{Limits, Metadata};
use units::{BlockId, Moment, PageId, RequestId, StreamId, Token};
use wire::format::FEATURE_PROOFS;
use wire::{
    BlockRange, ClientConfig, ClientConnection, ClientEvent, ErrorCode, ImageHandle, PieceForm, PushEncoding,
    PushEndReason, PushHeader, PushPiece, Reply, Request, WireError,
};

/// No test waits longer for the server; it is a limit for a broken server, not a measure.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Client {
    pub wire: ClientConnection,
    stream: TcpStream,
    start: Instant,
    replies: HashMap<RequestId, Reply>,
    pub needs: Vec<BlockRange>,
    need_complete: bool,
    pub progress: u64,
    pub closed: Option<WireError>,
    pub streams: BTreeMap<StreamId, Stream>,
    /// Pages that came by push or demand, verified.
    pub have: BTreeSet<PageId>,
    /// Blocks that came on demand, in order.
    pub blocks: Vec<BlockId>,
    /// Whether pushed pieces are credited as they come; otherwise they wait for `credit_all`.
    pub credits: bool,
    uncredited: Vec<(StreamId, u32)>,
    images: HashMap<ImageHandle, Metadata>,
    /// Proofs of chunk hashes that came, in order; they were verified.
    pub proofs: Vec<Bytes>,
    /// Parts of images that came before the answer to Open, with their places.
    pub begun: Vec<(u64, Bytes)>,
}

pub struct Stream {
    pub push: PushHeader,
    decoder: Option<StreamDecoder>,
    pub pieces: Vec<PushPiece>,
    /// Of each piece that says it.
    pub forms: Vec<PieceForm>,
    pub end: Option<PushEndReason>,
}

impl Stream {
    pub fn pages(&self) -> Vec<PageId> {
        self.pieces.iter().flat_map(|piece| piece.pages.iter().copied()).collect()
    }
}

/// Decodes a piece that says how it is encoded; its form.
fn decode(
    decoder: &mut Option<StreamDecoder>,
    window_log: u8,
    piece: &PushPiece,
    raw_bytes: usize,
    raw: &mut Vec<u8>,
) -> PieceForm {
    let (form, stored) = PieceForm::split(&piece.bytes).unwrap();
    match form {
        PieceForm::Stored => codec::decode(codec::Codec::Stored, stored, raw_bytes, raw).unwrap(),
        PieceForm::Lz4 => codec::decode(codec::Codec::Lz4, stored, raw_bytes, raw).unwrap(),
        PieceForm::ZstdBegins => {
            let decoder = decoder.insert(StreamDecoder::new(window_log.into()).unwrap());
            decoder.piece(stored, raw_bytes, raw).unwrap();
        }
        PieceForm::ZstdContinues => decoder.as_mut().unwrap().piece(stored, raw_bytes, raw).unwrap(),
    }
    form
}

/// A connection to `address` that comes from `source`.
pub fn stream_from(source: [u8; 4], address: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    // Little of what the client does not read fits the kernel.
    rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 64 << 10).unwrap();
    bind(&socket, &SocketAddr::from((source, 0))).unwrap();
    connect(&socket, &address).unwrap();
    TcpStream::from(socket)
}

impl Client {
    pub fn connect(address: SocketAddr, device: u128) -> Client {
        Client::with(address, ClientConfig { device, ..ClientConfig::default() })
    }

    pub fn with(address: SocketAddr, config: ClientConfig) -> Client {
        Client::over(TcpStream::connect(address).expect("the server listens"), config)
    }

    /// A client on another machine: one that comes from `source`, any address of 127.0.0.0/8.
    pub fn connect_from(source: [u8; 4], address: SocketAddr, device: u128) -> Client {
        Client::over(stream_from(source, address), ClientConfig { device, ..ClientConfig::default() })
    }

    fn over(stream: TcpStream, config: ClientConfig) -> Client {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Client {
            wire: ClientConnection::new(config, Moment(0)),
            stream,
            start: Instant::now(),
            replies: HashMap::new(),
            needs: Vec::new(),
            need_complete: false,
            progress: 0,
            closed: None,
            streams: BTreeMap::new(),
            have: BTreeSet::new(),
            blocks: Vec::new(),
            credits: true,
            uncredited: Vec::new(),
            images: HashMap::new(),
            proofs: Vec::new(),
            begun: Vec::new(),
        }
    }

    pub fn now(&self) -> Moment {
        Moment(self.start.elapsed().as_micros() as u64)
    }

    /// Sends what is queued.
    pub fn send(&mut self) {
        loop {
            let mut out = Vec::new();
            if self.wire.transmit(self.now(), &mut out, 1 << 20) == 0 {
                return;
            }
            if self.stream.write_all(&out).is_err() {
                self.wire.lost();
                return;
            }
        }
    }

    /// Sends what is queued, waits for some bytes and takes them.
    fn step(&mut self) {
        self.send();
        let mut input = vec![0; 256 << 10];
        match self.stream.read(&mut input) {
            Ok(bytes) if bytes > 0 => drop(self.wire.receive(self.now(), &input[..bytes])),
            Ok(_) => self.wire.lost(),
            Err(error) if matches!(error.kind(), std::io::ErrorKind::ConnectionReset) => self.wire.lost(),
            Err(error) => panic!("the server says nothing: {error}"),
        }
        while let Some(event) = self.wire.poll_event() {
            self.take(event);
        }
        self.send();
    }

    /// Goes on until `done`, or until the connection is closed.
    pub fn until(&mut self, mut done: impl FnMut(&Client) -> bool) {
        let begun = Instant::now();
        while !done(self) && self.closed.is_none() {
            assert!(begun.elapsed() < PATIENCE, "the server does not get there");
            self.step();
        }
    }

    fn take(&mut self, event: ClientEvent) {
        match event {
            ClientEvent::Ready(_) => {}
            ClientEvent::Reply { request, reply } => drop(self.replies.insert(request, reply)),
            ClientEvent::Expired { request } => panic!("request {request} expired"),
            ClientEvent::PutNeed { ranges, last, .. } => {
                self.needs.extend(ranges);
                self.need_complete |= last;
            }
            ClientEvent::PutProgress { bytes, .. } => self.progress = bytes,
            ClientEvent::Start { offset, bytes, .. } => self.begun.push((offset, bytes)),
            ClientEvent::Hashes { image, proof } => {
                self.images[&image].load_proof(&proof).unwrap();
                self.proofs.push(proof);
            }
            ClientEvent::PushStart { stream, push } => {
                let decoder = (push.encoding == PushEncoding::ZstdStream)
                    .then(|| StreamDecoder::new(push.window_log.into()).unwrap());
                self.streams.insert(stream, Stream { push, decoder, pieces: Vec::new(), forms: Vec::new(), end: None });
            }
            ClientEvent::Push { piece, credit } => {
                self.take_piece(&piece);
                self.uncredited.push((piece.stream, credit));
                if self.credits {
                    self.credit_all();
                }
                self.streams.get_mut(&piece.stream).unwrap().pieces.push(piece);
            }
            ClientEvent::PushEnd { stream, reason } => self.streams.get_mut(&stream).unwrap().end = Some(reason),
            ClientEvent::Closed(error) => self.closed = Some(error),
        }
    }

    pub fn credit_all(&mut self) {
        for (stream, bytes) in std::mem::take(&mut self.uncredited) {
            self.wire.credit(stream, bytes).unwrap();
        }
    }

    /// Decodes a piece and verifies its pages against the image.
    fn take_piece(&mut self, piece: &PushPiece) {
        let stream = self.streams.get_mut(&piece.stream).expect("the stream was started");
        if stream.push.encoding == PushEncoding::Volume {
            return;
        }
        let metadata = &self.images[&stream.push.image];
        let lengths: Vec<usize> = piece.pages.iter().map(|page| metadata.page_bytes(*page).unwrap()).collect();
        let mut raw = Vec::new();
        let raw_bytes = lengths.iter().sum();
        match &mut stream.decoder {
            _ if stream.push.encoding == PushEncoding::Pieces => {
                stream.forms.push(decode(&mut stream.decoder, stream.push.window_log, piece, raw_bytes, &mut raw));
            }
            Some(decoder) => decoder.piece(&piece.bytes, raw_bytes, &mut raw).unwrap(),
            None => raw.extend_from_slice(&piece.bytes),
        }
        let mut rest = raw.as_slice();
        for (page, length) in piece.pages.iter().zip(lengths) {
            let (bytes, after) = rest.split_at(length);
            metadata.verify_page(*page, bytes).unwrap();
            rest = after;
            self.have.insert(*page);
        }
        assert!(rest.is_empty());
    }

    pub fn request(&mut self, ask: Request) -> RequestId {
        let now = self.now();
        self.wire.request(now, ask).unwrap()
    }

    pub fn reply(&mut self, request: RequestId) -> Reply {
        self.until(|client| client.replies.contains_key(&request));
        let closed = &self.closed;
        self.replies.remove(&request).unwrap_or_else(|| panic!("closed without an answer: {closed:?}"))
    }

    /// Whether an answer to `request` came.
    pub fn has_reply(&self, request: RequestId) -> bool {
        self.replies.contains_key(&request)
    }

    pub fn ask(&mut self, ask: Request) -> Reply {
        let request = self.request(ask);
        self.reply(request)
    }

    /// Asks and expects an error of this code; returns its text.
    pub fn refused(&mut self, ask: Request, expected: ErrorCode) -> String {
        match self.ask(ask) {
            Reply::Error { code, text } if code == expected => text,
            other => panic!("expected {expected:?}, found {other:?}"),
        }
    }

    /// Opens an image and reads all of its metadata over the wire. Chunk hashes are not loaded from
    /// it if they come with proofs: then pages can be verified only because the proofs came first.
    pub fn open(&mut self, name: &str) -> ImageHandle {
        let reply = self.ask(Request::Open { name: name.to_owned() });
        let Reply::Opened { image, id, file_bytes, metadata_offset, metadata_bytes } = reply else {
            panic!("{name}: {reply:?}")
        };
        let mut file = vec![0; file_bytes as usize];
        let part = 100_000;
        let mut ranges = vec![(0, 4096)];
        let end = metadata_offset + metadata_bytes;
        ranges.extend((metadata_offset..end).step_by(part).map(|at| (at, (end - at).min(part as u64))));
        for (offset, bytes) in ranges {
            let reply = self.ask(Request::MetaRead { image, offset, bytes: bytes as u32 });
            let Reply::MetaData { offset: at, bytes: data } = reply else { panic!("{reply:?}") };
            file[at as usize..at as usize + data.len()].copy_from_slice(&data);
        }
        let proves = self.wire.hello().is_some_and(|hello| hello.features & FEATURE_PROOFS != 0);
        let open = if proves { Metadata::open_early } else { Metadata::open };
        let metadata = open(&file, &Limits::default()).unwrap();
        assert_eq!(metadata.id(), id);
        self.images.insert(image, metadata);
        image
    }

    pub fn metadata(&self, image: ImageHandle) -> &Metadata {
        &self.images[&image]
    }

    /// The block that holds the first chunk of a page.
    pub fn block_of(&self, image: ImageHandle, page: PageId) -> BlockId {
        let metadata = &self.images[&image];
        let chunk = metadata.page_chunks(page).unwrap().chunks().next().unwrap();
        metadata.chunk(chunk).unwrap().block
    }

    pub fn pull_request(&self, image: ImageHandle, token: Token, page: PageId, force: bool) -> Request {
        Request::PullBlock { image, token, page, block: self.block_of(image, page), force, speculative: false }
    }

    /// Demands the block of a page, checks it, and counts the page. The reply, for those who expect
    /// something else.
    pub fn pull(&mut self, image: ImageHandle, token: Token, page: PageId) -> Reply {
        let ask = self.pull_request(image, token, page, false);
        let reply = self.ask(ask);
        if let Reply::Block { block, bytes } = &reply {
            let mut raw = Vec::new();
            self.images[&image].decode_block(*block, bytes, &mut raw).unwrap();
            self.blocks.push(*block);
            self.have.insert(page);
        }
        reply
    }

    /// Runs a program: touches its pages in order, demands what it has not got, reports the rest.
    /// Returns how many pages it had to demand.
    pub fn run(&mut self, image: ImageHandle, token: Token, program: &[PageId]) -> usize {
        let mut demanded = 0;
        for page in program {
            if self.have.contains(page) {
                self.touch(image, token, &[*page]);
                continue;
            }
            match self.pull(image, token, *page) {
                Reply::Block { .. } => demanded += 1,
                Reply::OnTheWay { stream } => {
                    let over = |client: &Client| client.streams.get(&stream).is_some_and(|stream| stream.end.is_some());
                    self.until(|client| client.have.contains(page) || over(client));
                    if !self.have.contains(page) {
                        let ask = self.pull_request(image, token, *page, true);
                        assert!(matches!(self.ask(ask), Reply::Block { .. }), "the stream ended without {page}");
                        self.have.insert(*page);
                        demanded += 1;
                    }
                }
                other => panic!("{page}: {other:?}"),
            }
        }
        demanded
    }

    pub fn touch(&mut self, image: ImageHandle, token: Token, pages: &[PageId]) {
        self.wire.touch(image, token, pages.to_vec()).unwrap();
        self.send();
    }

    pub fn hint(&mut self, image: ImageHandle, token: Token, pages: &[PageId]) {
        self.wire.hint(image, token, pages.to_vec()).unwrap();
        self.send();
    }

    pub fn end(&mut self, image: ImageHandle, token: Token) {
        self.wire.token_end(image, token).unwrap();
        self.send();
    }

    pub fn stop_push(&mut self, stream: StreamId) {
        self.wire.stop_push(stream).unwrap();
        self.send();
    }

    pub fn cancel(&mut self, request: RequestId) {
        let now = self.now();
        self.wire.cancel(now, request).unwrap();
        self.send();
    }

    /// The status document.
    pub fn status(&mut self) -> serde_json::Value {
        let reply = self.ask(Request::Status);
        let Reply::Status { json } = reply else { panic!("{reply:?}") };
        serde_json::from_slice(&json).unwrap()
    }

    /// Asks for the status until `done` says that the server got there.
    pub fn status_until(&mut self, done: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
        let begun = Instant::now();
        loop {
            let status = self.status();
            if done(&status) {
                return status;
            }
            assert!(begun.elapsed() < PATIENCE, "the server does not get there: {status:#}");
        }
    }

    pub fn listing(&mut self) -> crate::Listing {
        let reply = self.ask(Request::List);
        let Reply::Listing { json } = reply else { panic!("{reply:?}") };
        serde_json::from_slice(&json).unwrap()
    }

    /// Announces an upload and sends superblock and metadata; then waits for the blocks that are
    /// needed.
    pub fn put_open(&mut self, name: &str, image: &[u8]) -> RequestId {
        let metadata = Metadata::open(&image, &Limits::default()).unwrap();
        let region = metadata.metadata_region();
        self.until(|client| client.wire.hello().is_some());
        let request = self.request(Request::PutOpen {
            name: name.to_owned(),
            file_bytes: image.len() as u64,
            metadata_offset: region.start,
            metadata_bytes: region.end - region.start,
        });
        self.put_meta(request, image, 0..4096);
        for start in region.clone().step_by(50_000) {
            self.put_meta(request, image, start..(start + 50_000).min(region.end));
        }
        self.needs.clear();
        self.need_complete = false;
        self.until(|client| client.need_complete || client.replies.contains_key(&request));
        request
    }

    pub fn put_meta(&mut self, request: RequestId, image: &[u8], range: std::ops::Range<u64>) {
        let bytes = Bytes::copy_from_slice(&image[range.start as usize..range.end as usize]);
        self.wire.put_meta(request, range.start, bytes).unwrap();
        self.send();
    }

    pub fn put_block(&mut self, request: RequestId, block: BlockId, bytes: Bytes) {
        if self.wire.put_block(request, block, bytes).is_ok() {
            self.send();
        }
    }

    /// Blocks the server asked for.
    pub fn needed(&self) -> Vec<BlockId> {
        self.needs.iter().flat_map(|range| (range.first.0..range.first.0 + range.count).map(BlockId)).collect()
    }

    /// Uploads an image as far as the server lets it. Returns the answer and the blocks that were
    /// sent.
    pub fn upload(&mut self, name: &str, image: &[u8]) -> (Reply, Vec<BlockId>) {
        let request = self.put_open(name, image);
        if self.has_reply(request) || self.closed.is_some() {
            return (self.reply(request), Vec::new());
        }
        let needed = self.needed();
        self.send_blocks(request, image, &needed);
        self.put_commit(request);
        (self.reply(request), needed)
    }

    pub fn send_blocks(&mut self, request: RequestId, image: &[u8], blocks: &[BlockId]) {
        let metadata = Metadata::open(&image, &Limits::default()).unwrap();
        for block in blocks {
            let entry = metadata.block(*block).unwrap();
            let start = entry.file_offset as usize;
            let bytes = Bytes::copy_from_slice(&image[start..start + entry.stored_bytes as usize]);
            self.put_block(request, *block, bytes);
        }
    }

    /// Ends an upload. The server may have refused it meanwhile.
    pub fn put_commit(&mut self, request: RequestId) {
        if self.wire.put_commit(request).is_ok() {
            self.send();
        }
    }
}
