// Adding the tensors of a second folder (--fill-missing-from, an adapter) to a catalog. The number of tensors changes, and with it every
// tensor's home.
#include "append_rows.h"
#include "send_home.h"
#include "unshard/agree.h"
#include "unshard/catalog.h"

namespace unshard {
namespace {

/// The records at home here, by tensor, with numbers shifted.
void pack(const std::vector<Chunk>& chunks, FileId file_shift, TensorId tensor_shift, std::vector<PackedRecords>& records,
          std::vector<TensorId>& ids) {
  for (Chunk chunk : chunks) {
    chunk.tensor += tensor_shift;
    chunk.file += file_shift;
    if (ids.empty() || ids.back() != chunk.tensor) {
      ids.push_back(chunk.tensor);
      records.emplace_back();
    }
    records.back().add(chunk);
  }
}

}  // namespace

void append_rows(Comm& comm, Source& source, Catalog& catalog, const Source& other_source, const Catalog& other, std::uint8_t origin) {
  const auto file_shift = static_cast<FileId>(source.files.size());
  const auto tensor_shift = static_cast<TensorId>(catalog.tensors.size());
  std::vector<PackedRecords> records;
  std::vector<TensorId> ids;
  collectively(comm, "catalog", [&] {
    pack(catalog.chunks, 0, 0, records, ids);
    pack(other.chunks, file_shift, tensor_shift, records, ids);
    catalog.chunks.clear();
    source.files.insert(source.files.end(), other_source.files.begin(), other_source.files.end());
    for (TensorRow row : other.tensors) {
      row.origin = origin;
      catalog.tensors.push_back(std::move(row));
    }
    for (ObjectNote note : other.objects) {
      note.file += file_shift;
      catalog.objects.push_back(std::move(note));
    }
    catalog.findings.insert(catalog.findings.end(), other.findings.begin(), other.findings.end());
  });
  catalog.chunks = send_home(comm, catalog.tensors, records, ids, std::vector<bool>(catalog.tensors.size(), false));
}

void append_catalog(Comm& comm, Source& source, Catalog& catalog, const Source& other_source, const Catalog& other) {
  append_rows(comm, source, catalog, other_source, other, 1);
}

}  // namespace unshard
