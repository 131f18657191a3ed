; Submit launches to a CUDA stream through the driver's cuLaunchKernel.
;
; Launches of one stream run in order. Returns 0, or the number of the launch that the driver refused << 32 | its error;
; no launch after it is submitted. A launch without blocks is left out: the driver does not take it.

%CudaLaunch = type { ptr, i64, i64, i64, ptr }          ; function, blocks, threads of a block, bytes of shared memory,
                                                        ;   pointers to the parameters

define i64 @weft_submit(ptr %launch.kernel, ptr %stream, ptr %launches, i64 %count) nounwind {
entry:
  %any = icmp sgt i64 %count, 0
  br i1 %any, label %visit, label %done
visit:
  %number = phi i64 [ 0, %entry ], [ %number.next, %next ]
  %launch = getelementptr %CudaLaunch, ptr %launches, i64 %number
  %blocks.at = getelementptr %CudaLaunch, ptr %launch, i64 0, i32 1
  %blocks.long = load i64, ptr %blocks.at, align 8
  %filled = icmp sgt i64 %blocks.long, 0
  br i1 %filled, label %submit, label %next
submit:
  %function = load ptr, ptr %launch, align 8
  %threads.at = getelementptr %CudaLaunch, ptr %launch, i64 0, i32 2
  %threads.long = load i64, ptr %threads.at, align 8
  %shared.at = getelementptr %CudaLaunch, ptr %launch, i64 0, i32 3
  %shared.long = load i64, ptr %shared.at, align 8
  %parameters.at = getelementptr %CudaLaunch, ptr %launch, i64 0, i32 4
  %parameters = load ptr, ptr %parameters.at, align 8
  %blocks = trunc i64 %blocks.long to i32
  %threads = trunc i64 %threads.long to i32
  %shared = trunc i64 %shared.long to i32
  %error = call i32 %launch.kernel(ptr %function, i32 %blocks, i32 1, i32 1, i32 %threads, i32 1, i32 1, i32 %shared,
                                   ptr %stream, ptr %parameters, ptr null)
  %refused = icmp ne i32 %error, 0
  br i1 %refused, label %fail, label %next
next:
  %number.next = add i64 %number, 1
  %again = icmp slt i64 %number.next, %count
  br i1 %again, label %visit, label %done
fail:
  %error.long = zext i32 %error to i64
  %number.high = shl i64 %number, 32
  %failure = or i64 %number.high, %error.long
  ret i64 %failure
done:
  ret i64 0
}
