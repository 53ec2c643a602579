//! A client's requests about contents of files: opens, writes in both ways, and reads.

use base::{Attr, BlockId, Ino, limits::CHUNK_BYTES};
use bytes::Bytes;
use wire::{
    BlockGet, BlockMap, BlockPart, BlockPut, ChunkSlices, FileRef, Open, Opened, Release, Reply,
    Request, Slice, SliceSource, Write,
};

use super::{Client, Result};

impl Client {
    pub(crate) async fn open_file(&mut self, file: &FileRef) -> Result<Opened> {
        self.open_for(file, 6).await
    }

    pub(crate) async fn open_for(&mut self, file: &FileRef, access: u8) -> Result<Opened> {
        self.opens += 1;
        let open = Open { file: file.clone(), number: self.opens, access };
        match self.get(Request::Open(open)).await? {
            Reply::Opened(opened) => Ok(opened),
            other => panic!("{other:?}"),
        }
    }

    /// The number of the latest open.
    pub(crate) fn opened(&self) -> u64 {
        self.opens
    }

    pub(crate) async fn release(&mut self, ino: Ino, number: u64) {
        self.get(Request::Release(Release { files: vec![(ino, number)] })).await.unwrap();
    }

    /// Writes `data` at `at`, embedded in the request.
    pub(crate) async fn write(&mut self, file: &FileRef, at: u64, data: &[u8]) -> Result<Attr> {
        let mut chunks = Vec::new();
        for (chunk, start, data) in pieces(at, data) {
            let len = u32::try_from(data.len()).unwrap();
            let source = SliceSource::Embedded(Bytes::copy_from_slice(data));
            chunks.push(ChunkSlices { chunk, slices: vec![Slice { start, len, source }] });
        }
        self.write_chunks(file, chunks, at + data.len() as u64).await
    }

    /// Writes `data` at `at` as blocks.
    pub(crate) async fn write_blocks(
        &mut self,
        file: &FileRef,
        at: u64,
        data: &[u8],
    ) -> Result<Attr> {
        let mut chunks = Vec::new();
        for (chunk, start, data) in pieces(at, data) {
            let len = u32::try_from(data.len()).unwrap();
            let block = self.next_block();
            self.put_block(block, data).await?;
            let part = BlockPart { block, block_bytes: len, offset: 0, ticket: 0 };
            let slice = Slice { start, len, source: SliceSource::Block(part) };
            chunks.push(ChunkSlices { chunk, slices: vec![slice] });
        }
        self.write_chunks(file, chunks, at + data.len() as u64).await
    }

    pub(crate) fn next_block(&mut self) -> BlockId {
        self.blocks += 1;
        BlockId::new(self.welcome.session, self.blocks)
    }

    pub(crate) async fn put_block(&mut self, block: BlockId, data: &[u8]) -> Result<()> {
        let data = Bytes::copy_from_slice(data);
        self.get(Request::BlockPut(BlockPut { block, data })).await.map(drop)
    }

    pub(crate) async fn write_chunks(
        &mut self,
        file: &FileRef,
        chunks: Vec<ChunkSlices>,
        end: u64,
    ) -> Result<Attr> {
        let write = Write {
            file: file.clone(),
            chunks,
            end,
            at: None,
            clear_set_id: false,
            set: None,
            blocks: Vec::new(),
        };
        match self.get(Request::Write(write)).await? {
            Reply::Written(written) => Ok(written.attr),
            other => panic!("{other:?}"),
        }
    }

    /// The contents of a file, from its first byte to its last.
    pub(crate) async fn read(&mut self, file: &FileRef) -> Result<Vec<u8>> {
        let (mut first, mut data) = (0, Vec::new());
        loop {
            let map = BlockMap { file: file.clone(), first, count: 64 };
            let Reply::BlockMapped(mapped) = self.get(Request::BlockMap(map)).await? else {
                panic!("not a map");
            };
            data.resize(usize::try_from(mapped.attr.size).unwrap(), 0);
            if let Some(inline) = mapped.inline {
                assert_eq!(inline.len(), data.len());
                return Ok(Vec::from(inline));
            }
            for chunk in &mapped.chunks {
                let start = u64::from(chunk.chunk) * u64::from(CHUNK_BYTES);
                // The oldest slice first, so that the newest shows.
                for slice in chunk.slices.iter().rev() {
                    let at = usize::try_from(start + u64::from(slice.start)).unwrap();
                    let bytes = self.slice(slice).await?;
                    data[at..at + slice.len as usize].copy_from_slice(&bytes);
                }
            }
            first = mapped.end;
            if u64::from(first) * u64::from(CHUNK_BYTES) >= mapped.attr.size {
                return Ok(data);
            }
        }
    }

    async fn slice(&mut self, slice: &Slice) -> Result<Bytes> {
        match &slice.source {
            SliceSource::Embedded(data) => Ok(data.clone()),
            SliceSource::Zeros => Ok(Bytes::from(vec![0; slice.len as usize])),
            SliceSource::Block(part) => self.get_block(*part, slice.len).await,
        }
    }

    pub(crate) async fn get_block(&mut self, part: BlockPart, len: u32) -> Result<Bytes> {
        match self.get(Request::BlockGet(BlockGet { part, len })).await? {
            Reply::Data(data) => Ok(data),
            other => panic!("{other:?}"),
        }
    }
}

/// The parts of a range that lie in one chunk each: chunk, start within it, bytes.
fn pieces(at: u64, mut data: &[u8]) -> Vec<(u32, u32, &[u8])> {
    let mut pieces = Vec::new();
    let mut at = at;
    while !data.is_empty() {
        let start = u32::try_from(at % u64::from(CHUNK_BYTES)).unwrap();
        let (piece, rest) = data.split_at(data.len().min((CHUNK_BYTES - start) as usize));
        pieces.push((u32::try_from(at / u64::from(CHUNK_BYTES)).unwrap(), start, piece));
        at += piece.len() as u64;
        data = rest;
    }
    pieces
}
