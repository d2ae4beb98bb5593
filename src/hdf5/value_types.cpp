#include "value_types.h"

namespace unshard {
namespace {

Handle copy_of(hid_t type) {
  return Handle(checked(H5Tcopy(type), "HDF5", "H5Tcopy", ErrorCode::internal));
}

/// IEEE 754 half precision, the type that NumPy calls float16: 1 sign bit, 5 of the exponent, 10 of the mantissa.
Handle half() {
  Handle type = copy_of(H5T_IEEE_F32LE);
  const bool made = H5Tset_fields(type, 15, 10, 5, 0, 10) >= 0 && H5Tset_size(type, 2) >= 0 && H5Tset_ebias(type, 15) >= 0;
  if (!made) throw Error(ErrorCode::internal, "HDF5: the type float16 can't be made");
  return type;
}

/// As h5py stores complex numbers: a compound of `r` and `i`.
Handle complex_of(const Handle& part) {
  const std::size_t size = H5Tget_size(part);
  Handle type(checked(H5Tcreate(H5T_COMPOUND, 2 * size), "HDF5", "H5Tcreate", ErrorCode::internal));
  checked(H5Tinsert(type, "r", 0, part), "HDF5", "H5Tinsert", ErrorCode::internal);
  checked(H5Tinsert(type, "i", size, part), "HDF5", "H5Tinsert", ErrorCode::internal);
  return type;
}

std::optional<DType> integer_of(std::size_t size, bool is_signed) {
  switch (size) {
    case 1: return is_signed ? DType::i8 : DType::u8;
    case 2: return is_signed ? DType::i16 : DType::u16;
    case 4: return is_signed ? DType::i32 : DType::u32;
    case 8: return is_signed ? DType::i64 : DType::u64;
    default: return std::nullopt;
  }
}

}  // namespace

Handle stored_type(DType dtype) {
  switch (dtype) {
    case DType::f64: return copy_of(H5T_IEEE_F64LE);
    case DType::f32: return copy_of(H5T_IEEE_F32LE);
    case DType::f16: return half();
    case DType::i64: return copy_of(H5T_STD_I64LE);
    case DType::i32: return copy_of(H5T_STD_I32LE);
    case DType::i16: return copy_of(H5T_STD_I16LE);
    case DType::i8: return copy_of(H5T_STD_I8LE);
    case DType::u64: return copy_of(H5T_STD_U64LE);
    case DType::u32: return copy_of(H5T_STD_U32LE);
    case DType::bf16:
    case DType::u16: return copy_of(H5T_STD_U16LE);
    case DType::c32: return complex_of(half());
    case DType::c64: return complex_of(copy_of(H5T_IEEE_F32LE));
    case DType::c128: return complex_of(copy_of(H5T_IEEE_F64LE));
    case DType::u8:
    case DType::boolean:
    case DType::f8_e4m3:
    case DType::f8_e5m2:
    case DType::f8_e4m3fnuz:
    case DType::f8_e5m2fnuz:
    case DType::f8_e8m0:
    case DType::f4_x2: return copy_of(H5T_STD_U8LE);
  }
  throw Error(ErrorCode::internal, "HDF5: an element type without a stored type");
}

std::optional<DType> dtype_of(hid_t type) {
  const std::size_t size = H5Tget_size(type);
  if (size > 1 && H5Tget_order(type) != H5T_ORDER_LE) return std::nullopt;
  const H5T_class_t kind = H5Tget_class(type);
  if (kind == H5T_INTEGER) return integer_of(size, H5Tget_sign(type) == H5T_SGN_2);
  if (kind != H5T_FLOAT) return std::nullopt;
  for (const DType dtype : {DType::f64, DType::f32, DType::f16}) {
    const Handle known = stored_type(dtype);
    if (H5Tequal(type, known) > 0) return dtype;
  }
  return std::nullopt;
}

}  // namespace unshard
