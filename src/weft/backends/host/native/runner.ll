; Runs tapes on the threads of a pool.
;
; A caller publishes its run in a slot of the pool and walks along the tape at once. Workers that are awake look for open
; slots and join; one that finds nothing to do for a while leaves and falls asleep. A caller waits only for blocks that a
; worker has taken, never for one that sleeps, so nothing can lock up however few workers there are.

%Slot = type {
  i32,                                                  ; 0 state: see below
  i32,                                                  ; 1 taken by a caller
  [56 x i8],
  %Run
}
; A slot's state: bits 0..15 workers inside, 16..27 workers wanted, 28 the caller sleeps, 29 open.

%Pool = type {
  i32,                                                  ; 0 epoch: counts announcements; workers sleep on it
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

; -- workers ----------------------------------------------------------------------------------------------------------

; Join a slot's run if it is open and wants one more; whether there was anything to do.
define internal i1 @help(ptr %pool, ptr %slot, i64 %number) nounwind {
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
  %run = getelementptr %Slot, ptr %slot, i64 0, i32 3
  %pauses.from = getelementptr %Pool, ptr %pool, i64 0, i32 8
  %pauses = load i64, ptr %pauses.from
  %did = call i1 @walk(ptr %pool, ptr %slot, ptr %run, i64 %number, i64 %pauses, ptr null)
  %before = atomicrmw sub ptr %slot, i32 1 acq_rel
  %flags = and i32 %before, 268500991                        ; the caller sleeps, and this was the last inside
  %last = icmp eq i32 %flags, 268435457
  br i1 %last, label %rouse, label %done
rouse:
  call void @weft_wake(ptr %slot, i32 1)
  br label %done
done:
  ret i1 %did
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
  %helped = call i1 @help(ptr %pool, ptr %slot, i64 %number)
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

; Whether workers are to leave, be a run they help with done or not.
define internal i1 @is_stopped(ptr %pool) alwaysinline nounwind {
  %stop.place = getelementptr %Pool, ptr %pool, i64 0, i32 3
  %stop = load atomic i32, ptr %stop.place monotonic, align 4
  %stopped = icmp ne i32 %stop, 0
  ret i1 %stopped
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

; Run all steps of a tape. `regions` holds the addresses that its places refer to; `times` is null or
; [launches][threads][2], to be filled with each thread's start and end in nanoseconds.
define void @weft_run(ptr %tape, ptr %regions, ptr %pool, i64 %threads.asked, ptr %times) nounwind {
entry:
  %threads = call i64 @llvm.smin.i64(i64 %threads.asked, i64 64)
  %helpers.wide = sub i64 %threads, 1
  %helpers = trunc i64 %helpers.wide to i32
  %alone = icmp slt i64 %threads, 2
  br i1 %alone, label %single, label %together
single:
  %steps = load ptr, ptr %tape
  %count.from = getelementptr %Tape, ptr %tape, i64 0, i32 1
  %count = load i64, ptr %count.from
  %most.from = getelementptr %Tape, ptr %tape, i64 0, i32 4
  %most = load i64, ptr %most.from
  %buffers = alloca ptr, i64 %most, align 64
  br label %visit
visit:
  %index = phi i64 [ 0, %single ], [ %index.next, %launch ]
  %more = icmp slt i64 %index, %count
  br i1 %more, label %launch, label %end
launch:
  %step = getelementptr %Step, ptr %steps, i64 %index
  %first = load i64, ptr %step
  %launches.from = getelementptr %Step, ptr %step, i64 0, i32 1
  %launches = load i64, ptr %launches.from
  %whole = call i1 @in_order(ptr %tape, i64 %first, i64 %launches, i64 %first, i64 0, ptr %regions, ptr %buffers,
                             ptr %times, i64 %threads.asked, i64 0, ptr null, ptr null)
  %index.next = add i64 %index, 1
  br label %visit
together:
  %slot = call ptr @claim(ptr %pool, i32 %helpers)
  %failed = icmp eq ptr %slot, null
  br i1 %failed, label %single, label %publish
publish:
  %run = getelementptr %Slot, ptr %slot, i64 0, i32 3
  call void @begin(ptr %run, ptr %tape, ptr %regions, i64 %threads, ptr %times)
  %wanted = shl i32 %helpers, 16
  %state = or i32 %wanted, 536870912
  store atomic i32 %state, ptr %slot release, align 4
  call void @announce(ptr %pool)
  %pauses.from = getelementptr %Pool, ptr %pool, i64 0, i32 8
  %pauses = load i64, ptr %pauses.from
  %did = call i1 @walk(ptr %pool, ptr %slot, ptr %run, i64 0, i64 %pauses, ptr null)
  %was = atomicrmw and ptr %slot, i32 -536870913 acq_rel
  call void @drain(ptr %pool, ptr %slot)
  call void @release(ptr %pool, ptr %slot, i32 %helpers)
  br label %end
end:
  ret void
}

%SlicedRun = type {
  ptr,                                                  ; 0 tape
  ptr,                                                  ; 1 regions
  ptr,                                                  ; 2 pool
  i64,                                                  ; 3 threads
  ptr,                                                  ; 4 times
  i64,                                                  ; 5 0 at first, 1 alone, 2 with a slot, 3 at its end
  ptr,                                                  ; 6 slot
  %Caller
}

; The same as `weft_run`, for so many nanoseconds: whether there is more to do. What a sliced run refers to must live until
; there is not, or until it is left.
define i32 @weft_go(ptr %sliced, i64 %nanoseconds) nounwind {
entry:
  %tape = load ptr, ptr %sliced
  %regions.from = getelementptr %SlicedRun, ptr %sliced, i64 0, i32 1
  %regions = load ptr, ptr %regions.from
  %pool.from = getelementptr %SlicedRun, ptr %sliced, i64 0, i32 2
  %pool = load ptr, ptr %pool.from
  %threads.from = getelementptr %SlicedRun, ptr %sliced, i64 0, i32 3
  %threads.asked = load i64, ptr %threads.from
  %times.from = getelementptr %SlicedRun, ptr %sliced, i64 0, i32 4
  %times = load ptr, ptr %times.from
  %state.place = getelementptr %SlicedRun, ptr %sliced, i64 0, i32 5
  %state = load i64, ptr %state.place
  %slot.place = getelementptr %SlicedRun, ptr %sliced, i64 0, i32 6
  %caller = getelementptr %SlicedRun, ptr %sliced, i64 0, i32 7
  %step.place = getelementptr %Caller, ptr %caller, i64 0, i32 1
  %threads = call i64 @llvm.smin.i64(i64 %threads.asked, i64 64)
  %helpers.wide = sub i64 %threads, 1
  %helpers = trunc i64 %helpers.wide to i32
  %count.from = getelementptr %Tape, ptr %tape, i64 0, i32 1
  %count = load i64, ptr %count.from
  %now = call i64 @weft_clock()
  %end.time = add i64 %now, %nanoseconds
  store i64 %end.time, ptr %caller
  switch i64 %state, label %ended [ i64 0, label %choose
                                    i64 1, label %alone
                                    i64 2, label %together ]
choose:
  %single = icmp slt i64 %threads, 2
  br i1 %single, label %set.out, label %ask
ask:
  %claimed = call ptr @claim(ptr %pool, i32 %helpers)
  %failed = icmp eq ptr %claimed, null
  br i1 %failed, label %set.out, label %publish
publish:
  store i64 -1, ptr %step.place
  store ptr %claimed, ptr %slot.place
  %run.new = getelementptr %Slot, ptr %claimed, i64 0, i32 3
  call void @begin(ptr %run.new, ptr %tape, ptr %regions, i64 %threads, ptr %times)
  %wanted = shl i32 %helpers, 16
  %open = or i32 %wanted, 536870912
  store atomic i32 %open, ptr %claimed release, align 4
  store i64 2, ptr %state.place
  call void @announce(ptr %pool)
  br label %together
together:
  %slot = load ptr, ptr %slot.place
  %run = getelementptr %Slot, ptr %slot, i64 0, i32 3
  %pauses.from = getelementptr %Pool, ptr %pool, i64 0, i32 8
  %pauses = load i64, ptr %pauses.from
  %did = call i1 @walk(ptr %pool, ptr %slot, ptr %run, i64 0, i64 %pauses, ptr %caller)
  %progress = load atomic i64, ptr %run acquire, align 8
  %done = lshr i64 %progress, 32
  %finished = icmp sge i64 %done, %count
  br i1 %finished, label %close, label %undone
close:
  call void @weft_leave(ptr %sliced)
  ret i32 0

set.out:
  store i64 1, ptr %state.place
  store i64 0, ptr %step.place
  %launch.place = getelementptr %Caller, ptr %caller, i64 0, i32 2
  store i64 0, ptr %launch.place
  %block.place = getelementptr %Caller, ptr %caller, i64 0, i32 3
  store i64 0, ptr %block.place
  br label %alone
alone:
  %steps = load ptr, ptr %tape
  %most.from = getelementptr %Tape, ptr %tape, i64 0, i32 4
  %most = load i64, ptr %most.from
  %buffers = alloca ptr, i64 %most, align 64
  %step.first = load i64, ptr %step.place
  %at.from = getelementptr %Caller, ptr %caller, i64 0, i32 2
  %at.first = load i64, ptr %at.from
  %block.from = getelementptr %Caller, ptr %caller, i64 0, i32 3
  %block.first = load i64, ptr %block.from
  br label %visit
visit:
  %index = phi i64 [ %step.first, %alone ], [ %index.next, %next ]
  %at.known = phi i64 [ %at.first, %alone ], [ 0, %next ]
  %block = phi i64 [ %block.first, %alone ], [ 0, %next ]
  %more = icmp slt i64 %index, %count
  br i1 %more, label %launch, label %arrive
launch:
  %step = getelementptr %Step, ptr %steps, i64 %index
  %first = load i64, ptr %step
  %launches.from = getelementptr %Step, ptr %step, i64 0, i32 1
  %launches = load i64, ptr %launches.from
  %at = call i64 @llvm.smax.i64(i64 %at.known, i64 %first)
  %whole = call i1 @in_order(ptr %tape, i64 %first, i64 %launches, i64 %at, i64 %block, ptr %regions, ptr %buffers,
                             ptr %times, i64 %threads.asked, i64 0, ptr null, ptr %caller)
  br i1 %whole, label %next, label %stop
next:
  %index.next = add i64 %index, 1
  %over = call i1 @is_over(ptr null, ptr %caller)
  %further = icmp slt i64 %index.next, %count
  %leave = and i1 %over, %further
  br i1 %leave, label %between, label %visit
between:
  store i64 0, ptr %at.from
  store i64 0, ptr %block.from
  br label %stop
stop:
  %index.now = phi i64 [ %index, %launch ], [ %index.next, %between ]
  store i64 %index.now, ptr %step.place
  br label %undone
arrive:
  store i64 3, ptr %state.place
  ret i32 0
undone:
  ret i32 1
ended:
  ret i32 0
}

; Leave a sliced run, wherever it is: no thread touches what it refers to any more.
define void @weft_leave(ptr %sliced) nounwind {
entry:
  %state.place = getelementptr %SlicedRun, ptr %sliced, i64 0, i32 5
  %state = load i64, ptr %state.place
  store i64 3, ptr %state.place
  %published = icmp eq i64 %state, 2
  br i1 %published, label %close, label %end
close:
  %pool.from = getelementptr %SlicedRun, ptr %sliced, i64 0, i32 2
  %pool = load ptr, ptr %pool.from
  %threads.from = getelementptr %SlicedRun, ptr %sliced, i64 0, i32 3
  %threads.asked = load i64, ptr %threads.from
  %threads = call i64 @llvm.smin.i64(i64 %threads.asked, i64 64)
  %helpers.wide = sub i64 %threads, 1
  %helpers = trunc i64 %helpers.wide to i32
  %slot.from = getelementptr %SlicedRun, ptr %sliced, i64 0, i32 6
  %slot = load ptr, ptr %slot.from
  %stop = getelementptr %Slot, ptr %slot, i64 0, i32 3, i32 11
  store atomic i64 1, ptr %stop seq_cst, align 8
  %was = atomicrmw and ptr %slot, i32 -536870913 acq_rel
  call void @drain(ptr %pool, ptr %slot)
  call void @release(ptr %pool, ptr %slot, i32 %helpers)
  br label %end
end:
  ret void
}

; A run of a tape from its first step on. Its tags are above those of all runs before, until there are none left.
define internal void @begin(ptr %run, ptr %tape, ptr %regions, i64 %threads, ptr %times) nounwind {
entry:
  %tape.place = getelementptr %Run, ptr %run, i64 0, i32 5
  %first.place = getelementptr %Run, ptr %run, i64 0, i32 9
  %first = load i64, ptr %first.place
  %steps.place = getelementptr %Run, ptr %run, i64 0, i32 10
  %steps = load i64, ptr %steps.place
  store atomic i64 0, ptr %run monotonic, align 8
  store ptr %tape, ptr %tape.place
  %regions.place = getelementptr %Run, ptr %run, i64 0, i32 6
  store ptr %regions, ptr %regions.place
  %times.place = getelementptr %Run, ptr %run, i64 0, i32 7
  store ptr %times, ptr %times.place
  %threads.place = getelementptr %Run, ptr %run, i64 0, i32 8
  store i64 %threads, ptr %threads.place
  %stop.place = getelementptr %Run, ptr %run, i64 0, i32 11
  store atomic i64 0, ptr %stop.place monotonic, align 8
  %count.from = getelementptr %Tape, ptr %tape, i64 0, i32 1
  %count = load i64, ptr %count.from
  %sum = add i64 %first, %steps
  %above = call i64 @llvm.umax.i64(i64 %sum, i64 1)           ; 0 is what unused memory holds
  %last = add i64 %above, %count
  %many = icmp ugt i64 %last, 4294967295
  br i1 %many, label %clear, label %set
clear:
  %ring = getelementptr %Run, ptr %run, i64 0, i32 12
  %ring.end = getelementptr %Run, ptr %run, i64 1
  %from = ptrtoint ptr %ring to i64
  %to = ptrtoint ptr %ring.end to i64
  %bytes = sub i64 %to, %from
  call void @llvm.memset.p0.i64(ptr %ring, i8 0, i64 %bytes, i1 false)
  br label %set
set:
  %first.next = phi i64 [ %above, %entry ], [ 1, %clear ]
  store i64 %first.next, ptr %first.place
  store i64 %count, ptr %steps.place
  ret void
}

%Call = type { ptr, ptr, i64, ptr, [0 x ptr] }          ; tape, pool, threads, times, regions

; Run a section's tape on a call's regions: whole addresses, the arena, the errors, then arrays, of which the address
; is given or (where the tape says so) the object. Returns the errors, which are 0 for the next call.
define i32 @weft_call(ptr %call) nounwind {
entry:
  %tape = load ptr, ptr %call
  %regions.from = getelementptr %Tape, ptr %tape, i64 0, i32 5
  %regions = load i64, ptr %regions.from
  %inside.from = getelementptr %Tape, ptr %tape, i64 0, i32 6
  %inside = load i64, ptr %inside.from
  %objects = icmp ne i64 %inside, 0
  %given = getelementptr %Call, ptr %call, i64 0, i32 4
  %errors.from = getelementptr ptr, ptr %given, i64 2
  %errors = load ptr, ptr %errors.from
  %addresses = alloca ptr, i64 %regions, align 16
  br label %visit
visit:
  %index = phi i64 [ 0, %entry ], [ %index.next, %next ]
  %more = icmp slt i64 %index, %regions
  br i1 %more, label %read, label %run
read:
  %region.from = getelementptr ptr, ptr %given, i64 %index
  %region = load ptr, ptr %region.from
  %array = icmp sgt i64 %index, 2
  %object = and i1 %array, %objects
  br i1 %object, label %look, label %next
look:
  %data.from = getelementptr i8, ptr %region, i64 %inside
  %data = load ptr, ptr %data.from
  br label %next
next:
  %address = phi ptr [ %region, %read ], [ %data, %look ]
  %place = getelementptr ptr, ptr %addresses, i64 %index
  store ptr %address, ptr %place
  %index.next = add i64 %index, 1
  br label %visit
run:
  %pool.from = getelementptr %Call, ptr %call, i64 0, i32 1
  %pool = load ptr, ptr %pool.from
  %threads.from = getelementptr %Call, ptr %call, i64 0, i32 2
  %threads = load i64, ptr %threads.from
  %times.from = getelementptr %Call, ptr %call, i64 0, i32 3
  %times = load ptr, ptr %times.from
  call void @weft_run(ptr %tape, ptr %addresses, ptr %pool, i64 %threads, ptr %times)
  %failed = load i32, ptr %errors
  store i32 0, ptr %errors
  ret i32 %failed
}
