package netdev

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Packets returns a socket that receives the packets that pass a filter, on the link with an index
// or, with 0, on all. With kind unix.SOCK_RAW it receives frames, with unix.SOCK_DGRAM their
// payload.
func Packets(kind, link int, filter []bpf.Instruction) (*os.File, error) {
	raw, err := bpf.Assemble(filter)
	if err != nil {
		return nil, fmt.Errorf("packet filter: %w", err)
	}
	program := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		program[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	// Without a protocol the socket receives nothing before Bind: the filter is attached first.
	fd, err := unix.Socket(unix.AF_PACKET, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	f := os.NewFile(uintptr(fd), "packets")
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
	if err == nil {
		all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("packet socket: %w", err), f.Close())
	}
	return f, nil
}
