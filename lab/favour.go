package lab

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Favour gives this process and all its later children real-time priority (sched(7), SCHED_RR),
// until the returned function is called. It needs CAP_SYS_NICE. The userspace datapath replaces the
// kernel datapath, which loses no packets when a compiler runs in parallel. So call Favour before
// starting a lab that measures outages or counts lost packets on a busy machine. The kernel leaves
// other processes a twentieth of the time. A process with this priority cannot join a CPU control
// group, so nodes with a disk cannot be started meanwhile.
func Favour() (end func() error, err error) {
	end = func() error { return schedule(&unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL}) }
	if err := schedule(&unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: 1}); err != nil {
		return nil, errors.Join(err, end())
	}
	return end, nil
}

// schedule sets the scheduling attributes of all threads of this process.
func schedule(attr *unix.SchedAttr) error {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("schedule this process: %w", err)
	}
	for _, task := range tasks {
		id, err := strconv.Atoi(task.Name())
		if err != nil {
			continue
		}
		// A thread that has ended needs nothing; a new thread inherits the attributes of its
		// creator.
		if err := unix.SchedSetAttr(id, attr, 0); err != nil && err != unix.ESRCH {
			return fmt.Errorf("schedule this process: %w", os.NewSyscallError("sched_setattr", err))
		}
	}
	return nil
}
