; A pause in a loop that waits for another core.

@futex_number = internal constant i64 202             ; Linux's, which differs between processors

declare void @llvm.x86.sse2.pause()

define internal void @weft_pause() alwaysinline nounwind {
  call void @llvm.x86.sse2.pause()
  ret void
}
