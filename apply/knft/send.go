package knft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"hairpin/datapath/nft"
)

// send sends the transaction to the kernel. The kernel executes it, and queues its replies, before
// sendto returns. The error for a missing element, map, set or table is unix.ENOENT.
func (b *batch) send() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("nft: %w", os.NewSyscallError("socket", err))
	}
	defer func() { _ = unix.Close(fd) }()
	// Replies contain the offset of the rejected element, and do not repeat the message.
	for _, option := range []int{unix.NETLINK_EXT_ACK, unix.NETLINK_CAP_ACK} {
		if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, option, 1); err != nil {
			return fmt.Errorf("nft: %w", os.NewSyscallError("setsockopt", err))
		}
	}
	// The batch must fit, even beyond the system's limit.
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, len(b.bytes)); err != nil {
		return fmt.Errorf("nft: %w", os.NewSyscallError("setsockopt", err))
	}
	if err := unix.Sendto(fd, b.bytes, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("nft: %w", os.NewSyscallError("sendto", err))
	}
	done := false
	buffer := make([]byte, os.Getpagesize())
	for {
		n, _, err := unix.Recvfrom(fd, buffer, unix.MSG_DONTWAIT)
		if err == unix.EAGAIN {
			break
		}
		var messages []syscall.NetlinkMessage
		if err == nil {
			messages, err = syscall.ParseNetlinkMessage(buffer[:n])
		}
		if err != nil {
			return fmt.Errorf("nft: answer of the kernel: %w", err)
		}
		for _, m := range messages {
			if err := b.refusal(m); err != nil {
				return fmt.Errorf("nft: %w", err)
			}
			done = true
		}
	}
	if !done {
		return errors.New("nft: no answer of the kernel")
	}
	return nil
}

// refusal parses a reply: what was rejected, and why.
func (b *batch) refusal(m syscall.NetlinkMessage) error {
	const header = 4 + unix.SizeofNlMsghdr // the errno and the header of the rejected message
	if m.Header.Type != unix.NLMSG_ERROR || len(m.Data) < header {
		return fmt.Errorf("answer of unknown type %d", m.Header.Type)
	}
	number := int32(binary.NativeEndian.Uint32(m.Data))
	if number == 0 {
		return nil
	}
	var err error = unix.Errno(-number)
	at := 0
	if m.Header.Flags&unix.NLM_F_ACK_TLVS != 0 {
		attrs, wrong := nl.ParseRouteAttr(m.Data[header:])
		if wrong != nil {
			return errors.Join(err, wrong)
		}
		for _, a := range attrs {
			switch a.Attr.Type {
			case unix.NLMSGERR_ATTR_MSG:
				err = fmt.Errorf("%w: %s", err, unix.ByteSliceToString(a.Value))
			case unix.NLMSGERR_ATTR_OFFS:
				at = int(binary.NativeEndian.Uint32(a.Value))
			}
		}
	}
	n := int(m.Header.Seq)
	if n < 1 || n > len(b.requests) {
		return err // about the whole transaction
	}
	r := b.requests[n-1]
	after, _ := slices.BinarySearch(r.at, at+1)
	if after == 0 {
		return fmt.Errorf("%s: %w", r.words, err) // about the table, map or set
	}
	return fmt.Errorf("%s { %s }: %w", r.words, nft.ElementText(r.key, r.elements[after-1].Element), err)
}
