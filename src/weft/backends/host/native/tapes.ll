; Fill the tables of a tape (walk.ll) with the numbers of a plan for some sizes.
;
; A form describes the launches of a plan by the slots of their numbers; those of loops are there once. All tables of a
; tape are in one block of words: %Filled, the first launch of each entry, the step that each entry ends with, then
; launches, places, parameters and steps.

%Form = type {
  i64,                                                  ; 0 launches
  ptr,                                                  ; 1 launches: %FormLaunch
  ptr,                                                  ; 2 buffers of all launches: %FormBuffer
  ptr,                                                  ; 3 slots of the parameters of all launches
  i64,                                                  ; 4 parameters
  i64,                                                  ; 5 entries
  ptr,                                                  ; 6 entries: %FormEntry
  ptr,                                                  ; 7 numbers of the entries that entries wait for
  i64,                                                  ; 8 stacks, at least 1
  ptr,                                                  ; 9 slots of their totals
  ptr,                                                  ; 10 slots of the offsets of their blocks, by stack and block
  i64,                                                  ; 11 blocks of a stack
  i64,                                                  ; 12 most buffers of a launch
  i64,                                                  ; 13 regions
  i64,                                                  ; 14 bytes into an array object where its address is, or 0
  i64,                                                  ; 15 threads
  ptr                                                   ; 16 %Limits
}
%FormLaunch = type { ptr, i64, i64, i64, i64, i64 }     ; kernel; slots of blocks, flops and bytes; buffers, parameters
%FormBuffer = type { i64, i64, i64, i64 }               ; region, slot of the offset, block, slot of the shift in a loop
%FormEntry = type { i64, i64, i64, i64, i64 }           ; launches, buffers, slot of a loop's count or -1, first wait,
                                                        ;   waits or -1 for all earlier entries
%Limits = type {
  double,                                               ; 0 operations a second
  double,                                               ; 1 bytes a second from caches
  double,                                               ; 2 bytes a second from memory
  double,                                               ; 3 bytes of a launch that fit in caches
  double,                                               ; 4 seconds that each launch takes
  double,                                               ; 5 seconds of a launch worth sharing
  double,                                               ; 6 seconds of shared launches worth waking threads
  double,                                               ; 7 seconds of a long run
  double,                                               ; 8 seconds between two checks for an interrupt
  double,                                               ; 9 seconds of a run that blocks
  double,                                               ; 10 seconds of a block that blocks
  double,                                               ; 11 the same where only the traffic is known
  double,                                               ; 12 fewest checks of a launch of unknown effort
  double                                                ; 13 most seconds of launches that one thread runs in sequence
}
%Filled = type {
  %Tape,                                                ; 0
  i64,                                                  ; 1 launches of the tape
  i64,                                                  ; 2 bytes of the arena
  i64                                                   ; 3 bits: 1 steps are shared among threads, 2 the run is long,
}                                                       ;   4 it may block
%Sums = type { double, double, double, i1 }             ; seconds of shared launches, of all, of those of known effort;
                                                        ;   whether a block takes long
%Cursor = type {
  ptr,                                                  ; 0 next launch of the form
  ptr,                                                  ; 1 its buffers
  ptr,                                                  ; 2 slots of its parameters
  ptr,                                                  ; 3 where its parameters go
  i64,                                                  ; 4 launches of the tape so far
  i64,                                                  ; 5 places so far
  i64,                                                  ; 6 steps so far
  double                                                ; 7 seconds of the sequence that the last step is, or infinity
}

define internal i64 @field(ptr %row, i64 %index) alwaysinline nounwind {
  %place = getelementptr i64, ptr %row, i64 %index
  %number = load i64, ptr %place
  ret i64 %number
}

define internal ptr @table(ptr %row, i64 %index) alwaysinline nounwind {
  %place = getelementptr ptr, ptr %row, i64 %index
  %table = load ptr, ptr %place
  ret ptr %table
}

define internal double @limit(ptr %form, i64 %index) alwaysinline nounwind {
  %limits = call ptr @table(ptr %form, i64 16)
  %place = getelementptr double, ptr %limits, i64 %index
  %limit = load double, ptr %place
  ret double %limit
}

; The value of the slot that a field of a row names.
define internal i64 @value_of(ptr %row, i64 %index, ptr %values) alwaysinline nounwind {
  %slot = call i64 @field(ptr %row, i64 %index)
  %value = call i64 @field(ptr %values, i64 %slot)
  ret i64 %value
}

; How often the launches of an entry run.
define internal i64 @count_of(ptr %entry, ptr %values) alwaysinline nounwind {
  %slot = call i64 @field(ptr %entry, i64 2)
  %is.loop = icmp sge i64 %slot, 0
  br i1 %is.loop, label %loop, label %once
loop:
  %count = call i64 @field(ptr %values, i64 %slot)
  ret i64 %count
once:
  ret i64 1
}

; -- the size of the tables -------------------------------------------------------------------------------------------

; Whether the blocks of all launches are at least 0 and fit into 32 bits.
define internal i1 @are_blocks_valid(ptr %form, ptr %values) nounwind {
entry:
  %count = call i64 @field(ptr %form, i64 0)
  %launches = call ptr @table(ptr %form, i64 1)
  br label %visit
visit:
  %number = phi i64 [ 0, %entry ], [ %number.next, %check ]
  %more = icmp slt i64 %number, %count
  br i1 %more, label %check, label %valid
check:
  %launch = getelementptr %FormLaunch, ptr %launches, i64 %number
  %blocks = call i64 @value_of(ptr %launch, i64 1, ptr %values)
  %number.next = add i64 %number, 1
  %fits = icmp ult i64 %blocks, 4294967296
  br i1 %fits, label %visit, label %invalid
valid:
  ret i1 true
invalid:
  ret i1 false
}

; The launches (field 0) or places (field 1) of the tape, or -1: a loop's count is negative, or there are 2^31 or more.
; An entry of the form has fewer than 2^31, so that no product overflows.
define internal i64 @count_rows(ptr %form, ptr %values, i64 %index) nounwind {
entry:
  %entries = call i64 @field(ptr %form, i64 5)
  %entry.rows = call ptr @table(ptr %form, i64 6)
  br label %visit
visit:
  %number = phi i64 [ 0, %entry ], [ %number.next, %next ]
  %total = phi i64 [ 0, %entry ], [ %total.next, %next ]
  %more = icmp slt i64 %number, %entries
  br i1 %more, label %look, label %end
look:
  %row = getelementptr %FormEntry, ptr %entry.rows, i64 %number
  %count = call i64 @count_of(ptr %row, ptr %values)
  %countable = icmp ult i64 %count, 2147483648
  br i1 %countable, label %add, label %invalid
add:
  %once = call i64 @field(ptr %row, i64 %index)
  %all = mul i64 %once, %count
  %total.next = add i64 %total, %all
  %fits = icmp ult i64 %total.next, 2147483648
  br i1 %fits, label %next, label %invalid
next:
  %number.next = add i64 %number, 1
  br label %visit
end:
  ret i64 %total
invalid:
  ret i64 -1
}

; The words of all tables with this many launches and places.
define internal i64 @count_words(ptr %form, i64 %launches, i64 %places) nounwind {
  %entries = call i64 @field(ptr %form, i64 5)
  %parameters = call i64 @field(ptr %form, i64 4)
  %steps = add i64 %launches, %entries                  ; a loop that runs 0 times has a step and no launch
  %rows = add i64 %launches, %steps
  %row.words = mul i64 %rows, 6
  %place.words = mul i64 %places, 2
  %entry.words = mul i64 %entries, 2
  %words.1 = add i64 %row.words, %place.words
  %words.2 = add i64 %words.1, %entry.words
  %words.3 = add i64 %words.2, %parameters
  %words = add i64 %words.3, 10                         ; of %Filled
  ret i64 %words
}

; -- times ------------------------------------------------------------------------------------------------------------

; Seconds of a launch on one thread; infinite where its effort is unknown, 0 where it has no blocks or never runs.
define internal double @estimate(ptr %form, ptr %launch, i64 %count, ptr %values) nounwind {
entry:
  %blocks = call i64 @value_of(ptr %launch, i64 1, ptr %values)
  %empty = icmp eq i64 %blocks, 0
  %never = icmp eq i64 %count, 0
  %idle = or i1 %empty, %never
  br i1 %idle, label %nothing, label %work
nothing:
  ret double 0.0
work:
  %flops = call i64 @value_of(ptr %launch, i64 2, ptr %values)
  %bytes = call i64 @value_of(ptr %launch, i64 3, ptr %values)
  %either = or i64 %flops, %bytes
  %unknown = icmp eq i64 %either, 0
  br i1 %unknown, label %endless, label %known
endless:
  ret double 0x7FF0000000000000
known:
  %operations = sitofp i64 %flops to double
  %flop.rate = call double @limit(ptr %form, i64 0)
  %arithmetic = fdiv double %operations, %flop.rate
  %amount = sitofp i64 %bytes to double
  %cached = call double @limit(ptr %form, i64 3)
  %is.cached = fcmp ole double %amount, %cached
  %cache.rate = call double @limit(ptr %form, i64 1)
  %memory.rate = call double @limit(ptr %form, i64 2)
  %rate = select i1 %is.cached, double %cache.rate, double %memory.rate
  %traffic = fdiv double %amount, %rate
  %is.arithmetic = fcmp ogt double %arithmetic, %traffic
  %effort = select i1 %is.arithmetic, double %arithmetic, double %traffic
  %overhead = call double @limit(ptr %form, i64 4)
  %seconds = fadd double %overhead, %effort
  ret double %seconds
}

; Whether a launch of this many blocks and seconds is shared among threads.
define internal i1 @is_shared(ptr %form, i64 %blocks, double %seconds) alwaysinline nounwind {
  %several = icmp sgt i64 %blocks, 1
  %worth = call double @limit(ptr %form, i64 5)
  %long = fcmp oge double %seconds, %worth
  %shared = and i1 %several, %long
  ret i1 %shared
}

; Add the seconds of a launch that runs `count` times.
define internal void @add_seconds(ptr %form, ptr %launch, i64 %count, ptr %values, ptr %sums) nounwind {
entry:
  %seconds = call double @estimate(ptr %form, ptr %launch, i64 %count, ptr %values)
  %busy = fcmp ogt double %seconds, 0.0
  br i1 %busy, label %add, label %end
add:
  %times = sitofp i64 %count to double
  %more = fmul double %seconds, %times
  %blocks = call i64 @value_of(ptr %launch, i64 1, ptr %values)
  %shared = call i1 @is_shared(ptr %form, i64 %blocks, double %seconds)
  %shared.more = select i1 %shared, double %more, double 0.0
  %shared.before = load double, ptr %sums
  %shared.sum = fadd double %shared.before, %shared.more
  store double %shared.sum, ptr %sums
  %all.place = getelementptr %Sums, ptr %sums, i64 0, i32 1
  %all.before = load double, ptr %all.place
  %all.sum = fadd double %all.before, %more
  store double %all.sum, ptr %all.place
  %known = fcmp one double %seconds, 0x7FF0000000000000
  br i1 %known, label %add.known, label %end
add.known:
  %known.place = getelementptr %Sums, ptr %sums, i64 0, i32 2
  %known.before = load double, ptr %known.place
  %known.sum = fadd double %known.before, %more
  store double %known.sum, ptr %known.place
  %flops = call i64 @value_of(ptr %launch, i64 2, ptr %values)
  %counted = icmp sgt i64 %flops, 0
  %block.limit = call double @limit(ptr %form, i64 10)
  %traffic.limit = call double @limit(ptr %form, i64 11)
  %most = select i1 %counted, double %block.limit, double %traffic.limit
  %blocks.real = sitofp i64 %blocks to double
  %most.all = fmul double %most, %blocks.real
  %slow = fcmp ogt double %seconds, %most.all
  br i1 %slow, label %note, label %end
note:
  %slow.place = getelementptr %Sums, ptr %sums, i64 0, i32 3
  store i1 true, ptr %slow.place
  br label %end
end:
  ret void
}

; The bits of %Filled that follow from the times of all launches.
define internal i64 @classify_run(ptr %form, ptr %values) nounwind {
entry:
  %sums = alloca %Sums, align 8
  store %Sums zeroinitializer, ptr %sums
  %entries = call i64 @field(ptr %form, i64 5)
  %entry.rows = call ptr @table(ptr %form, i64 6)
  %launches = call ptr @table(ptr %form, i64 1)
  br label %visit
visit:
  %number = phi i64 [ 0, %entry ], [ %number.next, %next ]
  %first = phi i64 [ 0, %entry ], [ %stop, %next ]
  %more = icmp slt i64 %number, %entries
  br i1 %more, label %look, label %end
look:
  %row = getelementptr %FormEntry, ptr %entry.rows, i64 %number
  %count = call i64 @count_of(ptr %row, ptr %values)
  %length = call i64 @field(ptr %row, i64 0)
  %stop = add i64 %first, %length
  br label %inside
inside:
  %index = phi i64 [ %first, %look ], [ %index.next, %add ]
  %any = icmp slt i64 %index, %stop
  br i1 %any, label %add, label %next
add:
  %launch = getelementptr %FormLaunch, ptr %launches, i64 %index
  call void @add_seconds(ptr %form, ptr %launch, i64 %count, ptr %values, ptr %sums)
  %index.next = add i64 %index, 1
  br label %inside
next:
  %number.next = add i64 %number, 1
  br label %visit
end:
  %shared = load double, ptr %sums
  %waking = call double @limit(ptr %form, i64 6)
  %is.waking = fcmp oge double %shared, %waking
  %threads = call i64 @field(ptr %form, i64 15)
  %several = icmp sgt i64 %threads, 1
  %is.spread = and i1 %is.waking, %several
  %all.from = getelementptr %Sums, ptr %sums, i64 0, i32 1
  %all = load double, ptr %all.from
  %long = call double @limit(ptr %form, i64 7)
  %is.long = fcmp oge double %all, %long
  %known.from = getelementptr %Sums, ptr %sums, i64 0, i32 2
  %known = load double, ptr %known.from
  %blocking = call double @limit(ptr %form, i64 9)
  %is.blocking = fcmp oge double %known, %blocking
  %slow.from = getelementptr %Sums, ptr %sums, i64 0, i32 3
  %slow = load i1, ptr %slow.from
  %blocks = or i1 %is.blocking, %slow
  %bit.1 = zext i1 %is.spread to i64
  %bit.2 = select i1 %is.long, i64 2, i64 0
  %bit.4 = select i1 %blocks, i64 4, i64 0
  %bits.3 = or i64 %bit.1, %bit.2
  %bits = or i64 %bits.3, %bit.4
  ret i64 %bits
}

; The blocks of a launch between two checks for an interrupt.
define internal i64 @blocks_between_checks(ptr %form, i64 %blocks, double %seconds) nounwind {
entry:
  %unknown = fcmp oeq double %seconds, 0x7FF0000000000000
  br i1 %unknown, label %guess, label %known
guess:
  %checks.real = call double @limit(ptr %form, i64 12)
  %checks = fptosi double %checks.real to i64
  %share = udiv i64 %blocks, %checks
  br label %end
known:
  %interval = call double @limit(ptr %form, i64 8)
  %long = fcmp ogt double %seconds, %interval
  br i1 %long, label %divide, label %end
divide:
  %blocks.real = sitofp i64 %blocks to double
  %product = fmul double %blocks.real, %interval
  %quotient = fdiv double %product, %seconds
  %part = fptosi double %quotient to i64                ; less than the blocks
  br label %end
end:
  %some = phi i64 [ %share, %guess ], [ %blocks, %known ], [ %part, %divide ]
  %most = call i64 @llvm.smax.i64(i64 %some, i64 1)
  ret i64 %most
}

; -- launches ---------------------------------------------------------------------------------------------------------

; The slots of the blocks' offsets in the first stack with the smallest total; store the total.
define internal ptr @choose_stack(ptr %form, ptr %values, ptr %bytes.place) nounwind {
entry:
  %stacks = call i64 @field(ptr %form, i64 8)
  %totals = call ptr @table(ptr %form, i64 9)
  %first = call i64 @value_of(ptr %totals, i64 0, ptr %values)
  br label %visit
visit:
  %number = phi i64 [ 1, %entry ], [ %number.next, %look ]
  %best = phi i64 [ 0, %entry ], [ %best.next, %look ]
  %least = phi i64 [ %first, %entry ], [ %least.next, %look ]
  %more = icmp slt i64 %number, %stacks
  br i1 %more, label %look, label %end
look:
  %total = call i64 @value_of(ptr %totals, i64 %number, ptr %values)
  %less = icmp slt i64 %total, %least
  %best.next = select i1 %less, i64 %number, i64 %best
  %least.next = select i1 %less, i64 %total, i64 %least
  %number.next = add i64 %number, 1
  br label %visit
end:
  store i64 %least, ptr %bytes.place
  %offsets = call ptr @table(ptr %form, i64 10)
  %blocks = call i64 @field(ptr %form, i64 11)
  %index = mul i64 %best, %blocks
  %starts = getelementptr i64, ptr %offsets, i64 %index
  ret ptr %starts
}

; Write the places of a launch's buffers `count` times, every `stride` places from `place` on.
define internal void @write_places(ptr %buffers, i64 %length, ptr %values, ptr %starts, ptr %places, i64 %place,
                                   i64 %count, i64 %stride) nounwind {
entry:
  br label %visit
visit:
  %index = phi i64 [ 0, %entry ], [ %index.next, %next ]
  %more = icmp slt i64 %index, %length
  br i1 %more, label %look, label %end
look:
  %buffer = getelementptr %FormBuffer, ptr %buffers, i64 %index
  %region = call i64 @field(ptr %buffer, i64 0)
  %inside = call i64 @value_of(ptr %buffer, i64 1, ptr %values)
  %block = call i64 @field(ptr %buffer, i64 2)
  %start = call i64 @value_of(ptr %starts, i64 %block, ptr %values)
  %shift = call i64 @value_of(ptr %buffer, i64 3, ptr %values)
  %offset.first = add i64 %inside, %start
  %number.first = add i64 %place, %index
  br label %repeat
repeat:
  %time = phi i64 [ 0, %look ], [ %time.next, %write ]
  %number = phi i64 [ %number.first, %look ], [ %number.next, %write ]
  %offset = phi i64 [ %offset.first, %look ], [ %offset.next, %write ]
  %again = icmp slt i64 %time, %count
  br i1 %again, label %write, label %next
write:
  %region.place = getelementptr %Place, ptr %places, i64 %number
  store i64 %region, ptr %region.place
  %offset.place = getelementptr %Place, ptr %region.place, i64 0, i32 1
  store i64 %offset, ptr %offset.place
  %time.next = add i64 %time, 1
  %number.next = add i64 %number, %stride
  %offset.next = add i64 %offset, %shift
  br label %repeat
next:
  %index.next = add i64 %index, 1
  br label %visit
end:
  ret void
}

; Write the parameters of a launch: zeros without blocks, since they may divide by a size of 0.
define internal void @write_parameters(ptr %slots, i64 %length, i1 %any, ptr %values, ptr %parameters) nounwind {
entry:
  br label %visit
visit:
  %index = phi i64 [ 0, %entry ], [ %index.next, %write ]
  %more = icmp slt i64 %index, %length
  br i1 %more, label %write, label %end
write:
  %value = call i64 @value_of(ptr %slots, i64 %index, ptr %values)
  %parameter = select i1 %any, i64 %value, i64 0
  %place = getelementptr i64, ptr %parameters, i64 %index
  store i64 %parameter, ptr %place
  %index.next = add i64 %index, 1
  br label %visit
end:
  ret void
}

; Write the next launch of the form `count` times: its row every `launches` rows from the `index`-th of its entry on,
; its places every `stride` places.
define internal void @write_launch(ptr %form, ptr %values, ptr %starts, ptr %rows, ptr %places, ptr %cursor, i64 %count,
                                   i64 %launches, i64 %index, i64 %stride) nounwind {
entry:
  %launch = load ptr, ptr %cursor
  %buffers.from = getelementptr %Cursor, ptr %cursor, i64 0, i32 1
  %buffers = load ptr, ptr %buffers.from
  %slots.from = getelementptr %Cursor, ptr %cursor, i64 0, i32 2
  %slots = load ptr, ptr %slots.from
  %parameters.from = getelementptr %Cursor, ptr %cursor, i64 0, i32 3
  %parameters = load ptr, ptr %parameters.from
  %row.from = getelementptr %Cursor, ptr %cursor, i64 0, i32 4
  %row.base = load i64, ptr %row.from
  %place.from = getelementptr %Cursor, ptr %cursor, i64 0, i32 5
  %place.first = load i64, ptr %place.from
  %kernel = load ptr, ptr %launch
  %blocks = call i64 @value_of(ptr %launch, i64 1, ptr %values)
  %buffer.count = call i64 @field(ptr %launch, i64 4)
  %parameter.count = call i64 @field(ptr %launch, i64 5)
  %seconds = call double @estimate(ptr %form, ptr %launch, i64 %count, ptr %values)
  %most = call i64 @blocks_between_checks(ptr %form, i64 %blocks, double %seconds)
  %any = icmp sgt i64 %blocks, 0
  call void @write_parameters(ptr %slots, i64 %parameter.count, i1 %any, ptr %values, ptr %parameters)
  call void @write_places(ptr %buffers, i64 %buffer.count, ptr %values, ptr %starts, ptr %places, i64 %place.first,
                          i64 %count, i64 %stride)
  %row.first = add i64 %row.base, %index
  br label %repeat
repeat:
  %time = phi i64 [ 0, %entry ], [ %time.next, %write ]
  %number = phi i64 [ %row.first, %entry ], [ %number.next, %write ]
  %place = phi i64 [ %place.first, %entry ], [ %place.next, %write ]
  %again = icmp slt i64 %time, %count
  br i1 %again, label %write, label %end
write:
  %row = getelementptr %Launch, ptr %rows, i64 %number
  store ptr %kernel, ptr %row
  %blocks.place = getelementptr %Launch, ptr %row, i64 0, i32 1
  store i64 %blocks, ptr %blocks.place
  %place.place = getelementptr %Launch, ptr %row, i64 0, i32 2
  store i64 %place, ptr %place.place
  %buffers.place = getelementptr %Launch, ptr %row, i64 0, i32 3
  store i64 %buffer.count, ptr %buffers.place
  %parameters.place = getelementptr %Launch, ptr %row, i64 0, i32 4
  store ptr %parameters, ptr %parameters.place
  %most.place = getelementptr %Launch, ptr %row, i64 0, i32 5
  store i64 %most, ptr %most.place
  %time.next = add i64 %time, 1
  %number.next = add i64 %number, %launches
  %place.next = add i64 %place, %stride
  br label %repeat
end:
  %launch.next = getelementptr %FormLaunch, ptr %launch, i64 1
  store ptr %launch.next, ptr %cursor
  %buffers.next = getelementptr %FormBuffer, ptr %buffers, i64 %buffer.count
  store ptr %buffers.next, ptr %buffers.from
  %slots.next = getelementptr i64, ptr %slots, i64 %parameter.count
  store ptr %slots.next, ptr %slots.from
  %parameters.next = getelementptr i64, ptr %parameters, i64 %parameter.count
  store ptr %parameters.next, ptr %parameters.from
  %place.after = add i64 %place.first, %buffer.count
  store i64 %place.after, ptr %place.from
  ret void
}

; Write the launches of an entry `count` times.
define internal void @write_entry(ptr %form, ptr %row, ptr %values, ptr %starts, ptr %rows, ptr %places, ptr %cursor,
                                  i64 %count) nounwind {
entry:
  %launches = call i64 @field(ptr %row, i64 0)
  %stride = call i64 @field(ptr %row, i64 1)
  %place.from = getelementptr %Cursor, ptr %cursor, i64 0, i32 5
  %place.first = load i64, ptr %place.from
  br label %visit
visit:
  %index = phi i64 [ 0, %entry ], [ %index.next, %write ]
  %more = icmp slt i64 %index, %launches
  br i1 %more, label %write, label %end
write:
  call void @write_launch(ptr %form, ptr %values, ptr %starts, ptr %rows, ptr %places, ptr %cursor, i64 %count,
                          i64 %launches, i64 %index, i64 %stride)
  %index.next = add i64 %index, 1
  br label %visit
end:
  %row.from = getelementptr %Cursor, ptr %cursor, i64 0, i32 4
  %row.first = load i64, ptr %row.from
  %all = mul i64 %launches, %count
  %row.next = add i64 %row.first, %all
  store i64 %row.next, ptr %row.from
  %places.all = mul i64 %stride, %count
  %place.next = add i64 %place.first, %places.all
  store i64 %place.next, ptr %place.from
  ret void
}

; -- steps ------------------------------------------------------------------------------------------------------------

; Write a step of `launches` launches; it is shared if it has several blocks.
define internal void @write_step(ptr %steps, ptr %cursor, i64 %first, i64 %launches, i64 %blocks,
                                 i64 %waits) nounwind {
  %count.from = getelementptr %Cursor, ptr %cursor, i64 0, i32 6
  %count = load i64, ptr %count.from
  %step = getelementptr %Step, ptr %steps, i64 %count
  store i64 %first, ptr %step
  %launches.place = getelementptr %Step, ptr %step, i64 0, i32 1
  store i64 %launches, ptr %launches.place
  %blocks.place = getelementptr %Step, ptr %step, i64 0, i32 2
  store i64 %blocks, ptr %blocks.place
  %grain.place = getelementptr %Step, ptr %step, i64 0, i32 3
  store i64 1, ptr %grain.place
  %parts.place = getelementptr %Step, ptr %step, i64 0, i32 4
  store i64 %blocks, ptr %parts.place
  %waits.place = getelementptr %Step, ptr %step, i64 0, i32 5
  store i64 %waits, ptr %waits.place
  %count.next = add i64 %count, 1
  store i64 %count.next, ptr %count.from
  ret void
}

; The bits of the earlier steps that an entry waits for, which is in step `step`; the highest bit is the step before it.
define internal i64 @wait_mask(ptr %form, ptr %row, i64 %step, ptr %step.of) nounwind {
entry:
  %first = call i64 @field(ptr %row, i64 3)
  %count = call i64 @field(ptr %row, i64 4)
  %all = icmp slt i64 %count, 0
  br i1 %all, label %everything, label %look
everything:
  ret i64 4294967295
look:
  %waits = call ptr @table(ptr %form, i64 7)
  br label %visit
visit:
  %index = phi i64 [ 0, %look ], [ %index.next, %next ]
  %mask = phi i64 [ 0, %look ], [ %mask.next, %next ]
  %more = icmp slt i64 %index, %count
  br i1 %more, label %measure, label %end
measure:
  %place = add i64 %first, %index
  %other = call i64 @field(ptr %waits, i64 %place)
  %other.step = call i64 @field(ptr %step.of, i64 %other)
  %distance = sub i64 %step, %other.step
  %before = sub i64 %distance, 1
  %visible = icmp ult i64 %before, 32
  br i1 %visible, label %mark, label %next
mark:
  %position = sub i64 32, %distance
  %bit = shl i64 1, %position
  %mask.more = or i64 %mask, %bit
  br label %next
next:
  %mask.next = phi i64 [ %mask, %measure ], [ %mask.more, %mark ]
  %index.next = add i64 %index, 1
  br label %visit
end:
  ret i64 %mask
}

; Whether an entry waits for another one.
define internal i1 @waits_for(ptr %form, ptr %row, i64 %other) nounwind {
entry:
  %first = call i64 @field(ptr %row, i64 3)
  %count = call i64 @field(ptr %row, i64 4)
  %all = icmp slt i64 %count, 0
  br i1 %all, label %yes, label %look
look:
  %waits = call ptr @table(ptr %form, i64 7)
  br label %visit
visit:
  %index = phi i64 [ 0, %look ], [ %index.next, %compare ]
  %more = icmp slt i64 %index, %count
  br i1 %more, label %compare, label %no
compare:
  %place = add i64 %first, %index
  %candidate = call i64 @field(ptr %waits, i64 %place)
  %same = icmp eq i64 %candidate, %other
  %index.next = add i64 %index, 1
  br i1 %same, label %yes, label %visit
yes:
  ret i1 true
no:
  ret i1 false
}

; Write the step of a single launch, or join it to the previous step: a short launch that depends on the previous entry
; is run by the same thread right after it.
define internal void @write_launch_step(ptr %form, i64 %number, ptr %row, ptr %launch, ptr %values, ptr %steps,
                                        ptr %step.of, ptr %cursor, i64 %first) nounwind {
entry:
  %blocks = call i64 @value_of(ptr %launch, i64 1, ptr %values)
  %seconds = call double @estimate(ptr %form, ptr %launch, i64 1, ptr %values)
  %shared = call i1 @is_shared(ptr %form, i64 %blocks, double %seconds)
  %count.from = getelementptr %Cursor, ptr %cursor, i64 0, i32 6
  %count = load i64, ptr %count.from
  %sequence.place = getelementptr %Cursor, ptr %cursor, i64 0, i32 7
  br i1 %shared, label %share, label %alone
share:
  %waits.shared = call i64 @wait_mask(ptr %form, ptr %row, i64 %count, ptr %step.of)
  call void @write_step(ptr %steps, ptr %cursor, i64 %first, i64 1, i64 %blocks, i64 %waits.shared)
  store double 0x7FF0000000000000, ptr %sequence.place
  ret void
alone:
  %sequence = load double, ptr %sequence.place
  %longer = fadd double %sequence, %seconds
  %most = call double @limit(ptr %form, i64 13)
  %short = fcmp ole double %longer, %most
  br i1 %short, label %ask, label %new
ask:
  %previous = sub i64 %number, 1
  %follows = call i1 @waits_for(ptr %form, ptr %row, i64 %previous)
  br i1 %follows, label %join, label %new
join:                                                   ; the sequence is finite, so the last step is one
  %last = sub i64 %count, 1
  %waits.more = call i64 @wait_mask(ptr %form, ptr %row, i64 %last, ptr %step.of)
  %step = getelementptr %Step, ptr %steps, i64 %last
  %launches.place = getelementptr %Step, ptr %step, i64 0, i32 1
  %launches = load i64, ptr %launches.place
  %launches.next = add i64 %launches, 1
  store i64 %launches.next, ptr %launches.place
  %waits.place = getelementptr %Step, ptr %step, i64 0, i32 5
  %waits.before = load i64, ptr %waits.place
  %waits.both = or i64 %waits.before, %waits.more
  store i64 %waits.both, ptr %waits.place
  store double %longer, ptr %sequence.place
  ret void
new:
  %waits = call i64 @wait_mask(ptr %form, ptr %row, i64 %count, ptr %step.of)
  call void @write_step(ptr %steps, ptr %cursor, i64 %first, i64 1, i64 1, i64 %waits)
  store double %seconds, ptr %sequence.place
  ret void
}

; Write the steps of a loop: each waits for the one before it, and launches that are not shared are joined.
define internal void @write_loop_steps(ptr %form, ptr %row, ptr %launch.first, ptr %values, ptr %steps, ptr %cursor,
                                       i64 %first, i64 %count) nounwind {
entry:
  %launches = call i64 @field(ptr %row, i64 0)
  %count.from = getelementptr %Cursor, ptr %cursor, i64 0, i32 6
  %begin = load i64, ptr %count.from
  %sequence.place = getelementptr %Cursor, ptr %cursor, i64 0, i32 7
  store double 0x7FF0000000000000, ptr %sequence.place
  br label %visit
visit:
  %index = phi i64 [ 0, %entry ], [ %index.next, %next ]
  %open = phi i1 [ false, %entry ], [ %open.next, %next ]  ; whether the last step takes more launches
  %any = phi i1 [ false, %entry ], [ %any.next, %next ]    ; whether one is shared
  %more = icmp slt i64 %index, %launches
  br i1 %more, label %look, label %once
look:
  %launch = getelementptr %FormLaunch, ptr %launch.first, i64 %index
  %number = add i64 %first, %index
  %blocks = call i64 @value_of(ptr %launch, i64 1, ptr %values)
  %seconds = call double @estimate(ptr %form, ptr %launch, i64 %count, ptr %values)
  %shared = call i1 @is_shared(ptr %form, i64 %blocks, double %seconds)
  %any.next = or i1 %any, %shared
  br i1 %shared, label %share, label %alone
share:
  call void @write_step(ptr %steps, ptr %cursor, i64 %number, i64 1, i64 %blocks, i64 4294967295)
  br label %next
alone:
  br i1 %open, label %join, label %new
join:
  %steps.now = load i64, ptr %count.from
  %last = sub i64 %steps.now, 1
  %step = getelementptr %Step, ptr %steps, i64 %last
  %length.place = getelementptr %Step, ptr %step, i64 0, i32 1
  %length = load i64, ptr %length.place
  %length.next = add i64 %length, 1
  store i64 %length.next, ptr %length.place
  br label %next
new:
  call void @write_step(ptr %steps, ptr %cursor, i64 %number, i64 1, i64 1, i64 4294967295)
  br label %next
next:
  %open.next = phi i1 [ false, %share ], [ true, %join ], [ true, %new ]
  %index.next = add i64 %index, 1
  br label %visit

once:                                                   ; one step for all times if none is shared
  %end = load i64, ptr %count.from
  %period = sub i64 %end, %begin
  br i1 %any, label %repeat, label %serial
serial:
  %some = icmp sgt i64 %period, 0
  br i1 %some, label %multiply, label %done
multiply:
  %only = getelementptr %Step, ptr %steps, i64 %begin
  %only.place = getelementptr %Step, ptr %only, i64 0, i32 1
  %all = mul i64 %launches, %count
  store i64 %all, ptr %only.place
  ret void
repeat:
  %steps.all = mul i64 %period, %count
  %stop = add i64 %begin, %steps.all
  br label %copy.visit
copy.visit:
  %place = phi i64 [ %end, %repeat ], [ %place.next, %copy ]
  %left = icmp slt i64 %place, %stop
  br i1 %left, label %copy, label %copied
copy:
  %source.index = sub i64 %place, %period
  %source = getelementptr %Step, ptr %steps, i64 %source.index
  %content = load %Step, ptr %source
  %source.first = extractvalue %Step %content, 0
  %target.first = add i64 %source.first, %launches
  %moved = insertvalue %Step %content, i64 %target.first, 0
  %target = getelementptr %Step, ptr %steps, i64 %place
  store %Step %moved, ptr %target
  %place.next = add i64 %place, 1
  br label %copy.visit
copied:
  store i64 %stop, ptr %count.from
  ret void
done:
  ret void
}

; Write a step for each launch `first`..stop-1.
define internal void @write_serial_steps(ptr %steps, ptr %cursor, i64 %first, i64 %stop) nounwind {
entry:
  br label %visit
visit:
  %number = phi i64 [ %first, %entry ], [ %number.next, %write ]
  %more = icmp slt i64 %number, %stop
  br i1 %more, label %write, label %end
write:
  call void @write_step(ptr %steps, ptr %cursor, i64 %number, i64 1, i64 1, i64 4294967295)
  %number.next = add i64 %number, 1
  br label %visit
end:
  ret void
}

; -- the tape ---------------------------------------------------------------------------------------------------------

; The number of words that all tables of a tape take; where `words` are enough for it, they are written to `filled`.
; -1 for numbers that no tape can have. Every slot of the form is one of `values`.
define i64 @weft_fill(ptr %form, ptr %values, ptr %filled, i64 %words) nounwind {
entry:
  %sane = call i1 @are_blocks_valid(ptr %form, ptr %values)
  %launches = call i64 @count_rows(ptr %form, ptr %values, i64 0)
  %place.count = call i64 @count_rows(ptr %form, ptr %values, i64 1)
  %both = or i64 %launches, %place.count
  %countable = icmp sge i64 %both, 0
  %valid = and i1 %sane, %countable
  br i1 %valid, label %measure, label %invalid
invalid:
  ret i64 -1
measure:
  %needed = call i64 @count_words(ptr %form, i64 %launches, i64 %place.count)
  %enough = icmp sle i64 %needed, %words
  br i1 %enough, label %fill, label %asked
asked:
  ret i64 %needed
fill:
  %entries = call i64 @field(ptr %form, i64 5)
  %entry.rows = call ptr @table(ptr %form, i64 6)
  %firsts = getelementptr %Filled, ptr %filled, i64 1
  %step.of = getelementptr i64, ptr %firsts, i64 %entries
  %rows = getelementptr i64, ptr %step.of, i64 %entries
  %places = getelementptr %Launch, ptr %rows, i64 %launches
  %parameters = getelementptr %Place, ptr %places, i64 %place.count
  %parameter.count = call i64 @field(ptr %form, i64 4)
  %steps = getelementptr i64, ptr %parameters, i64 %parameter.count
  %bytes.place = getelementptr %Filled, ptr %filled, i64 0, i32 2
  %starts = call ptr @choose_stack(ptr %form, ptr %values, ptr %bytes.place)
  %bits = call i64 @classify_run(ptr %form, ptr %values)
  %spread = trunc i64 %bits to i1
  %cursor = alloca %Cursor, align 8
  store %Cursor zeroinitializer, ptr %cursor
  %launch.first = call ptr @table(ptr %form, i64 1)
  store ptr %launch.first, ptr %cursor
  %buffers = call ptr @table(ptr %form, i64 2)
  %buffers.place = getelementptr %Cursor, ptr %cursor, i64 0, i32 1
  store ptr %buffers, ptr %buffers.place
  %slots = call ptr @table(ptr %form, i64 3)
  %slots.place = getelementptr %Cursor, ptr %cursor, i64 0, i32 2
  store ptr %slots, ptr %slots.place
  %parameters.place = getelementptr %Cursor, ptr %cursor, i64 0, i32 3
  store ptr %parameters, ptr %parameters.place
  %row.place = getelementptr %Cursor, ptr %cursor, i64 0, i32 4
  %step.place = getelementptr %Cursor, ptr %cursor, i64 0, i32 6
  %sequence.place = getelementptr %Cursor, ptr %cursor, i64 0, i32 7
  store double 0x7FF0000000000000, ptr %sequence.place
  br label %visit
visit:
  %number = phi i64 [ 0, %fill ], [ %number.next, %next ]
  %more = icmp slt i64 %number, %entries
  br i1 %more, label %write, label %end
write:
  %row = getelementptr %FormEntry, ptr %entry.rows, i64 %number
  %count = call i64 @count_of(ptr %row, ptr %values)
  %first = load i64, ptr %row.place
  %first.place = getelementptr i64, ptr %firsts, i64 %number
  store i64 %first, ptr %first.place
  %launch = load ptr, ptr %cursor
  call void @write_entry(ptr %form, ptr %row, ptr %values, ptr %starts, ptr %rows, ptr %places, ptr %cursor, i64 %count)
  br i1 %spread, label %shape, label %serial
serial:
  %stop = load i64, ptr %row.place
  call void @write_serial_steps(ptr %steps, ptr %cursor, i64 %first, i64 %stop)
  br label %next
shape:
  %slot = call i64 @field(ptr %row, i64 2)
  %is.loop = icmp sge i64 %slot, 0
  br i1 %is.loop, label %loop, label %single
loop:
  call void @write_loop_steps(ptr %form, ptr %row, ptr %launch, ptr %values, ptr %steps, ptr %cursor, i64 %first,
                              i64 %count)
  br label %next
single:
  call void @write_launch_step(ptr %form, i64 %number, ptr %row, ptr %launch, ptr %values, ptr %steps, ptr %step.of,
                               ptr %cursor, i64 %first)
  br label %next
next:
  %step.count = load i64, ptr %step.place
  %step.last = sub i64 %step.count, 1
  %step.of.place = getelementptr i64, ptr %step.of, i64 %number
  store i64 %step.last, ptr %step.of.place
  %number.next = add i64 %number, 1
  br label %visit
end:
  store ptr %steps, ptr %filled
  %steps.place = getelementptr %Tape, ptr %filled, i64 0, i32 1
  %steps.all = load i64, ptr %step.place
  store i64 %steps.all, ptr %steps.place
  %rows.place = getelementptr %Tape, ptr %filled, i64 0, i32 2
  store ptr %rows, ptr %rows.place
  %places.place = getelementptr %Tape, ptr %filled, i64 0, i32 3
  store ptr %places, ptr %places.place
  %most = call i64 @field(ptr %form, i64 12)
  %most.place = getelementptr %Tape, ptr %filled, i64 0, i32 4
  store i64 %most, ptr %most.place
  %regions = call i64 @field(ptr %form, i64 13)
  %regions.place = getelementptr %Tape, ptr %filled, i64 0, i32 5
  store i64 %regions, ptr %regions.place
  %data = call i64 @field(ptr %form, i64 14)
  %data.place = getelementptr %Tape, ptr %filled, i64 0, i32 6
  store i64 %data, ptr %data.place
  %launches.place = getelementptr %Filled, ptr %filled, i64 0, i32 1
  store i64 %launches, ptr %launches.place
  %bits.place = getelementptr %Filled, ptr %filled, i64 0, i32 3
  store i64 %bits, ptr %bits.place
  ret i64 %needed
}
