; Runs tapes, and spreads the blocks of a kernel over the threads of a pool.
;
; A caller publishes a kernel in a slot of its own and works on it at once. Workers that are awake look for open slots
; and join; whoever finds no blocks left closes the slot. A caller waits only for workers that joined, never for one
; that sleeps, so nothing can lock up however few workers there are. Each participant begins with a seat's range of
; blocks, the same ones in every kernel of a tape (its cache remembers them), then helps with those of other seats.

%Tape = type { ptr, i64, ptr, i64 }                     ; launches, their count, places, most buffers of a launch
%Launch = type { ptr, i64, i64, i64, ptr, i64, i64 }    ; kernel, blocks, first place, buffers, parameters, grain, parts
%Place = type { i64, i64 }                              ; region, byte offset

%Seat = type { i64, i64, [48 x i8] }                    ; next block, end
%Slot = type {
  i32,                                                  ; 0 state: see below
  i32,                                                  ; 1 taken by a caller
  [56 x i8],
  ptr,                                                  ; 3 kernel
  ptr,                                                  ; 4 buffers
  ptr,                                                  ; 5 parameters
  i64,                                                  ; 6 grain: blocks that are not worth dividing
  i64,                                                  ; 7 seats
  ptr,                                                  ; 8 times [seats][2] of this launch, or null
  [16 x i8],
  [64 x %Seat]
}
; A slot's state: bits 0..15 workers inside, 16..27 workers wanted, 28 the caller sleeps, 29 open.

%Pool = type {
  i32,                                                  ; 0 epoch: counts publications; workers sleep on it
  [60 x i8],
  i32,                                                  ; 2 sleepers
  i32,                                                  ; 3 stop
  i32,                                                  ; 4 workers
  i32,                                                  ; 5 demand: workers that the present callers want in all
  i32,                                                  ; 6 slots used so far
  i32,
  i64,                                                  ; 8 pauses before a waiting thread sleeps
  [32 x i8],
  [32 x %Slot]
}

define i64 @weft_pool_bytes() nounwind {
  %end = getelementptr %Pool, ptr null, i64 1
  %bytes = ptrtoint ptr %end to i64
  ret i64 %bytes
}

define void @weft_pause_times(i64 %count) nounwind {
entry:
  br label %again
again:
  %n = phi i64 [ 0, %entry ], [ %following, %again ]
  call void @weft_pause()
  %following = add i64 %n, 1
  %more = icmp slt i64 %following, %count
  br i1 %more, label %again, label %end
end:
  ret void
}

; -- blocks -----------------------------------------------------------------------------------------------------------

; A quarter of what is left of a seat's range, at least `grain`: [first, last), empty where nothing is left.
define internal { i64, i64 } @take(ptr %seat, i64 %grain) alwaysinline {
entry:
  %end.place = getelementptr %Seat, ptr %seat, i64 0, i32 1
  %end = load i64, ptr %end.place
  br label %again
again:
  %first = load atomic i64, ptr %seat monotonic, align 8
  %rest = sub i64 %end, %first
  %any = icmp sgt i64 %rest, 0
  br i1 %any, label %some, label %none
some:
  %quarter = lshr i64 %rest, 2
  %large = call i64 @llvm.smax.i64(i64 %quarter, i64 %grain)
  %count = call i64 @llvm.smin.i64(i64 %large, i64 %rest)
  %last = add i64 %first, %count
  %swap = cmpxchg ptr %seat, i64 %first, i64 %last monotonic monotonic
  %got = extractvalue { i64, i1 } %swap, 1
  br i1 %got, label %mine, label %again
mine:
  %begin = insertvalue { i64, i64 } undef, i64 %first, 0
  %range = insertvalue { i64, i64 } %begin, i64 %last, 1
  ret { i64, i64 } %range
none:
  ret { i64, i64 } zeroinitializer
}

; Work on a slot's kernel until none of its blocks is left, beginning at a seat.
define internal void @work(ptr %slot, i64 %number) nounwind {
entry:
  %kernel.place = getelementptr %Slot, ptr %slot, i64 0, i32 3
  %kernel = load ptr, ptr %kernel.place
  %buffers.place = getelementptr %Slot, ptr %slot, i64 0, i32 4
  %buffers = load ptr, ptr %buffers.place
  %parameters.place = getelementptr %Slot, ptr %slot, i64 0, i32 5
  %parameters = load ptr, ptr %parameters.place
  %grain.place = getelementptr %Slot, ptr %slot, i64 0, i32 6
  %grain = load i64, ptr %grain.place
  %seats.place = getelementptr %Slot, ptr %slot, i64 0, i32 7
  %seats = load i64, ptr %seats.place
  %times.place = getelementptr %Slot, ptr %slot, i64 0, i32 8
  %times = load ptr, ptr %times.place
  %own = urem i64 %number, %seats
  %timed = icmp ne ptr %times, null
  %start = call i64 @clock_if(i1 %timed)
  br label %visit
visit:
  %visited = phi i64 [ 0, %entry ], [ %visited.next, %leave ]
  %did.before = phi i1 [ false, %entry ], [ %did, %leave ]
  %place = add i64 %own, %visited
  %index = urem i64 %place, %seats
  %seat = getelementptr %Slot, ptr %slot, i64 0, i32 10, i64 %index
  br label %again
again:
  %did = phi i1 [ %did.before, %visit ], [ true, %run ]
  %range = call { i64, i64 } @take(ptr %seat, i64 %grain)
  %first = extractvalue { i64, i64 } %range, 0
  %last = extractvalue { i64, i64 } %range, 1
  %any = icmp slt i64 %first, %last
  br i1 %any, label %run, label %leave
run:
  call void %kernel(i64 %first, i64 %last, ptr %buffers, ptr %parameters)
  br label %again
leave:
  %visited.next = add i64 %visited, 1
  %more = icmp slt i64 %visited.next, %seats
  br i1 %more, label %visit, label %stamp
stamp:
  %record = and i1 %timed, %did
  br i1 %record, label %write, label %end
write:
  call void @stamp(ptr %times, i64 %own, i64 %start)
  br label %end
end:
  ret void
}

define internal i64 @clock_if(i1 %wanted) alwaysinline nounwind {
  br i1 %wanted, label %yes, label %no
yes:
  %now = call i64 @weft_clock()
  ret i64 %now
no:
  ret i64 0
}

define internal void @stamp(ptr %times, i64 %seat, i64 %start) nounwind {
  %now = call i64 @weft_clock()
  %index = shl i64 %seat, 1
  %start.place = getelementptr i64, ptr %times, i64 %index
  store i64 %start, ptr %start.place
  %end.place = getelementptr i64, ptr %start.place, i64 1
  store i64 %now, ptr %end.place
  ret void
}

; -- workers ----------------------------------------------------------------------------------------------------------

; Join the slot's kernel if it is open and wants one more; whether it did.
define internal i1 @help(ptr %slot, i64 %number) nounwind {
entry:
  %state = load atomic i32, ptr %slot monotonic, align 4
  br label %look
look:
  %seen = phi i32 [ %state, %entry ], [ %present, %try ]
  %open = and i32 %seen, 536870912
  %closed = icmp eq i32 %open, 0
  %inside = and i32 %seen, 65535
  %shifted = lshr i32 %seen, 16
  %wanted = and i32 %shifted, 4095
  %full = icmp uge i32 %inside, %wanted
  %not = or i1 %closed, %full
  br i1 %not, label %no, label %try
try:
  %more = add i32 %seen, 1
  %swap = cmpxchg ptr %slot, i32 %seen, i32 %more acq_rel acquire
  %present = extractvalue { i32, i1 } %swap, 0
  %joined = extractvalue { i32, i1 } %swap, 1
  br i1 %joined, label %yes, label %look
yes:
  call void @work(ptr %slot, i64 %number)
  %was = atomicrmw and ptr %slot, i32 -536870913 acq_rel     ; close: there are no blocks left
  %before = atomicrmw sub ptr %slot, i32 1 acq_rel
  %flags = and i32 %before, 268500991                        ; the caller sleeps, and this was the last inside
  %last = icmp eq i32 %flags, 268435457
  br i1 %last, label %rouse, label %done
rouse:
  call void @weft_wake(ptr %slot, i32 1)
  br label %done
done:
  ret i1 true
no:
  ret i1 false
}

; Help with every open slot once; whether there was any.
define internal i1 @help_all(ptr %pool, i64 %number) nounwind {
entry:
  %used.place = getelementptr %Pool, ptr %pool, i64 0, i32 6
  %used.narrow = load atomic i32, ptr %used.place acquire, align 4
  %used = zext i32 %used.narrow to i64
  br label %visit
visit:
  %index = phi i64 [ 0, %entry ], [ %index.next, %look ]
  %found = phi i1 [ false, %entry ], [ %found.next, %look ]
  %more = icmp ult i64 %index, %used
  br i1 %more, label %look, label %end
look:
  %slot = getelementptr %Pool, ptr %pool, i64 0, i32 10, i64 %index
  %helped = call i1 @help(ptr %slot, i64 %number)
  %found.next = or i1 %found, %helped
  %index.next = add i64 %index, 1
  br label %visit
end:
  ret i1 %found
}

; A worker's life: help, pause, sleep; until the pool stops.
define void @weft_worker(ptr %pool, i64 %number) nounwind {
entry:
  %stop.place = getelementptr %Pool, ptr %pool, i64 0, i32 3
  %sleepers.place = getelementptr %Pool, ptr %pool, i64 0, i32 2
  %pauses.place = getelementptr %Pool, ptr %pool, i64 0, i32 8
  %pauses = load i64, ptr %pauses.place
  br label %look
look:
  %paused = phi i64 [ 0, %entry ], [ 0, %found ], [ %paused.next, %pause ], [ 0, %woken ]
  %epoch = load atomic i32, ptr %pool acquire, align 4
  %stop = load atomic i32, ptr %stop.place monotonic, align 4
  %stopped = icmp ne i32 %stop, 0
  br i1 %stopped, label %end, label %search
search:
  %helped = call i1 @help_all(ptr %pool, i64 %number)
  br i1 %helped, label %found, label %wait
found:
  br label %look
wait:
  %n = phi i64 [ %paused, %search ], [ %paused.next, %pause ]
  %patient = icmp slt i64 %n, %pauses
  br i1 %patient, label %pause, label %sleep
pause:
  call void @weft_pause()
  %paused.next = add i64 %n, 1
  %now = load atomic i32, ptr %pool monotonic, align 4
  %news = icmp ne i32 %now, %epoch
  br i1 %news, label %look, label %wait
sleep:
  %before = atomicrmw add ptr %sleepers.place, i32 1 seq_cst
  %still = load atomic i32, ptr %pool seq_cst, align 4
  %same = icmp eq i32 %still, %epoch
  br i1 %same, label %park, label %woken
park:
  call void @weft_wait(ptr %pool, i32 %epoch)
  br label %woken
woken:
  %after = atomicrmw sub ptr %sleepers.place, i32 1 seq_cst
  br label %look
end:
  ret void
}

; End all workers.
define void @weft_stop(ptr %pool) nounwind {
  %stop.place = getelementptr %Pool, ptr %pool, i64 0, i32 3
  store atomic i32 1, ptr %stop.place seq_cst, align 4
  %epoch = atomicrmw add ptr %pool, i32 1 seq_cst
  call void @weft_wake(ptr %pool, i32 2147483647)
  ret void
}

; -- callers ----------------------------------------------------------------------------------------------------------

; A free slot of the pool, now the caller's, or null where all are taken.
define internal ptr @claim(ptr %pool, i32 %helpers) nounwind {
entry:
  br label %visit
visit:
  %index = phi i32 [ 0, %entry ], [ %index.next, %taken ]
  %more = icmp ult i32 %index, 32
  br i1 %more, label %look, label %none
look:
  %wide = zext i32 %index to i64
  %slot = getelementptr %Pool, ptr %pool, i64 0, i32 10, i64 %wide
  %taken.place = getelementptr %Slot, ptr %slot, i64 0, i32 1
  %swap = cmpxchg ptr %taken.place, i32 0, i32 1 acq_rel monotonic
  %got = extractvalue { i32, i1 } %swap, 1
  br i1 %got, label %mine, label %taken
taken:
  %index.next = add i32 %index, 1
  br label %visit
mine:
  %count = add i32 %index, 1
  %used.place = getelementptr %Pool, ptr %pool, i64 0, i32 6
  %used = atomicrmw umax ptr %used.place, i32 %count acq_rel
  %demand.place = getelementptr %Pool, ptr %pool, i64 0, i32 5
  %demand = atomicrmw add ptr %demand.place, i32 %helpers seq_cst
  ret ptr %slot
none:
  ret ptr null
}

define internal void @release(ptr %pool, ptr %slot, i32 %helpers) nounwind {
  %demand.place = getelementptr %Pool, ptr %pool, i64 0, i32 5
  %demand = atomicrmw sub ptr %demand.place, i32 %helpers seq_cst
  %taken.place = getelementptr %Slot, ptr %slot, i64 0, i32 1
  store atomic i32 0, ptr %taken.place release, align 4
  ret void
}

; Tell the workers that a slot is open, and wake as many as are missing.
define internal void @announce(ptr %pool) nounwind {
entry:
  %epoch = atomicrmw add ptr %pool, i32 1 seq_cst
  %sleepers.place = getelementptr %Pool, ptr %pool, i64 0, i32 2
  %sleepers = load atomic i32, ptr %sleepers.place seq_cst, align 4
  %workers.place = getelementptr %Pool, ptr %pool, i64 0, i32 4
  %workers = load atomic i32, ptr %workers.place monotonic, align 4
  %demand.place = getelementptr %Pool, ptr %pool, i64 0, i32 5
  %demand = load atomic i32, ptr %demand.place monotonic, align 4
  %awake = sub i32 %workers, %sleepers
  %missing = sub i32 %demand, %awake
  %short = icmp sgt i32 %missing, 0
  %asleep = icmp sgt i32 %sleepers, 0
  %wake = and i1 %short, %asleep
  br i1 %wake, label %rouse, label %end
rouse:
  call void @weft_wake(ptr %pool, i32 %missing)
  br label %end
end:
  ret void
}

; Wait until no worker is inside a slot that is closed.
define internal void @drain(ptr %pool, ptr %slot) nounwind {
entry:
  %pauses.place = getelementptr %Pool, ptr %pool, i64 0, i32 8
  %pauses = load i64, ptr %pauses.place
  br label %look
look:
  %n = phi i64 [ 0, %entry ], [ %n.next, %pause ], [ %n, %park ], [ %n, %mark ]
  %state = load atomic i32, ptr %slot acquire, align 4
  %inside = and i32 %state, 65535
  %empty = icmp eq i32 %inside, 0
  br i1 %empty, label %end, label %wait
wait:
  %patient = icmp slt i64 %n, %pauses
  br i1 %patient, label %pause, label %mark
pause:
  call void @weft_pause()
  %n.next = add i64 %n, 1
  br label %look
mark:
  %sleeping = or i32 %state, 268435456
  %swap = cmpxchg ptr %slot, i32 %state, i32 %sleeping acq_rel monotonic
  %marked = extractvalue { i32, i1 } %swap, 1
  br i1 %marked, label %park, label %look
park:
  call void @weft_wait(ptr %slot, i32 %sleeping)
  br label %look
end:
  ret void
}

; Run one launch together with the workers.
define internal void @share(ptr %pool, ptr %slot, ptr %launch, ptr %buffers, i64 %seats, ptr %times) nounwind {
entry:
  %kernel = load ptr, ptr %launch
  %blocks.from = getelementptr %Launch, ptr %launch, i64 0, i32 1
  %blocks = load i64, ptr %blocks.from
  %parameters.from = getelementptr %Launch, ptr %launch, i64 0, i32 4
  %parameters = load ptr, ptr %parameters.from
  %grain.from = getelementptr %Launch, ptr %launch, i64 0, i32 5
  %grain = load i64, ptr %grain.from
  %kernel.place = getelementptr %Slot, ptr %slot, i64 0, i32 3
  store ptr %kernel, ptr %kernel.place
  %buffers.place = getelementptr %Slot, ptr %slot, i64 0, i32 4
  store ptr %buffers, ptr %buffers.place
  %parameters.place = getelementptr %Slot, ptr %slot, i64 0, i32 5
  store ptr %parameters, ptr %parameters.place
  %grain.place = getelementptr %Slot, ptr %slot, i64 0, i32 6
  store i64 %grain, ptr %grain.place
  %seats.place = getelementptr %Slot, ptr %slot, i64 0, i32 7
  store i64 %seats, ptr %seats.place
  %times.place = getelementptr %Slot, ptr %slot, i64 0, i32 8
  store ptr %times, ptr %times.place
  br label %divide
divide:
  %index = phi i64 [ 0, %entry ], [ %index.next, %divide ]
  %first = phi i64 [ 0, %entry ], [ %last, %divide ]
  %index.next = add i64 %index, 1
  %product = mul i64 %blocks, %index.next
  %last = udiv i64 %product, %seats
  %seat = getelementptr %Slot, ptr %slot, i64 0, i32 10, i64 %index
  store atomic i64 %first, ptr %seat monotonic, align 8
  %end.place = getelementptr %Seat, ptr %seat, i64 0, i32 1
  store i64 %last, ptr %end.place
  %more = icmp slt i64 %index.next, %seats
  br i1 %more, label %divide, label %open
open:
  %helpers.wide = sub i64 %seats, 1
  %helpers = trunc i64 %helpers.wide to i32
  %wanted = shl i32 %helpers, 16
  %state = or i32 %wanted, 536870912
  store atomic i32 %state, ptr %slot release, align 4
  call void @announce(ptr %pool)
  call void @work(ptr %slot, i64 0)
  %was = atomicrmw and ptr %slot, i32 -536870913 acq_rel
  call void @drain(ptr %pool, ptr %slot)
  ret void
}

; Run one launch on the calling thread.
define internal void @alone(ptr %launch, ptr %buffers, ptr %times) alwaysinline nounwind {
entry:
  %kernel = load ptr, ptr %launch
  %blocks.from = getelementptr %Launch, ptr %launch, i64 0, i32 1
  %blocks = load i64, ptr %blocks.from
  %parameters.from = getelementptr %Launch, ptr %launch, i64 0, i32 4
  %parameters = load ptr, ptr %parameters.from
  %timed = icmp ne ptr %times, null
  %start = call i64 @clock_if(i1 %timed)
  call void %kernel(i64 0, i64 %blocks, ptr %buffers, ptr %parameters)
  br i1 %timed, label %write, label %end
write:
  call void @stamp(ptr %times, i64 0, i64 %start)
  br label %end
end:
  ret void
}

; Pointers for the launch's buffers: a region's address plus an offset each.
define internal void @resolve(ptr %launch, ptr %places, ptr %regions, ptr %buffers) alwaysinline nounwind {
entry:
  %first.from = getelementptr %Launch, ptr %launch, i64 0, i32 2
  %first = load i64, ptr %first.from
  %count.from = getelementptr %Launch, ptr %launch, i64 0, i32 3
  %count = load i64, ptr %count.from
  br label %visit
visit:
  %index = phi i64 [ 0, %entry ], [ %index.next, %set ]
  %more = icmp slt i64 %index, %count
  br i1 %more, label %set, label %end
set:
  %number = add i64 %first, %index
  %place = getelementptr %Place, ptr %places, i64 %number
  %region = load i64, ptr %place
  %offset.from = getelementptr %Place, ptr %place, i64 0, i32 1
  %offset = load i64, ptr %offset.from
  %base.from = getelementptr ptr, ptr %regions, i64 %region
  %base = load ptr, ptr %base.from
  %address = getelementptr i8, ptr %base, i64 %offset
  %buffer = getelementptr ptr, ptr %buffers, i64 %index
  store ptr %address, ptr %buffer
  %index.next = add i64 %index, 1
  br label %visit
end:
  ret void
}

; Run all launches of a tape in order. `regions` holds the addresses that its places refer to; `times` is null or
; [launches][threads][2], to be filled with each participant's start and end in nanoseconds.
define void @weft_run(ptr %tape, ptr %regions, ptr %pool, i64 %threads.asked, ptr %times) nounwind {
entry:
  %launches = load ptr, ptr %tape
  %count.from = getelementptr %Tape, ptr %tape, i64 0, i32 1
  %count = load i64, ptr %count.from
  %places.from = getelementptr %Tape, ptr %tape, i64 0, i32 2
  %places = load ptr, ptr %places.from
  %most.from = getelementptr %Tape, ptr %tape, i64 0, i32 3
  %most = load i64, ptr %most.from
  %buffers = alloca ptr, i64 %most, align 64
  %threads = call i64 @llvm.smin.i64(i64 %threads.asked, i64 64)
  %helpers.wide = sub i64 %threads, 1
  %helpers = trunc i64 %helpers.wide to i32
  %row = shl i64 %threads.asked, 1
  %timed = icmp ne ptr %times, null
  br label %visit
visit:
  %index = phi i64 [ 0, %entry ], [ %index.next, %next ]
  %slot = phi ptr [ null, %entry ], [ %slot.next, %next ]
  %more = icmp slt i64 %index, %count
  br i1 %more, label %prepare, label %finish
prepare:
  %launch = getelementptr %Launch, ptr %launches, i64 %index
  call void @resolve(ptr %launch, ptr %places, ptr %regions, ptr %buffers)
  %cell = mul i64 %index, %row
  %times.row = getelementptr i64, ptr %times, i64 %cell
  %times.here = select i1 %timed, ptr %times.row, ptr null
  %parts.from = getelementptr %Launch, ptr %launch, i64 0, i32 6
  %parts = load i64, ptr %parts.from
  %seats = call i64 @llvm.smin.i64(i64 %parts, i64 %threads)
  %parallel = icmp sgt i64 %seats, 1
  br i1 %parallel, label %together, label %single
together:
  %missing = icmp eq ptr %slot, null
  br i1 %missing, label %get, label %have
get:
  %claimed = call ptr @claim(ptr %pool, i32 %helpers)
  %failed = icmp eq ptr %claimed, null
  br i1 %failed, label %single, label %have
have:
  %slot.have = phi ptr [ %slot, %together ], [ %claimed, %get ]
  call void @share(ptr %pool, ptr %slot.have, ptr %launch, ptr %buffers, i64 %seats, ptr %times.here)
  br label %next
single:
  call void @alone(ptr %launch, ptr %buffers, ptr %times.here)
  br label %next
next:
  %slot.next = phi ptr [ %slot.have, %have ], [ %slot, %single ]
  %index.next = add i64 %index, 1
  br label %visit
finish:
  %none = icmp eq ptr %slot, null
  br i1 %none, label %end, label %give
give:
  call void @release(ptr %pool, ptr %slot, i32 %helpers)
  br label %end
end:
  ret void
}
