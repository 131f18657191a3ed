; A pause in a loop that waits for another core: a barrier takes about as long as one on other machines.

@futex_number = internal constant i64 98             ; Linux's, which differs between processors

declare void @llvm.aarch64.isb(i32)

define internal void @weft_pause() alwaysinline nounwind {
  call void @llvm.aarch64.isb(i32 15)
  ret void
}
