package redirect

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"hairpin/claims"
	"hairpin/cluster"
)

// conntrack holds the kernel functions with which a program queries the host's conntrack.
type conntrack struct {
	lookup, release asm.Instruction
	module          *btf.Handle // has the functions; nil: they are in the kernel itself
}

// messageStats is IPCTNL_MSG_CT_GET_STATS (linux/netfilter/nfnetlink_conntrack.h).
const messageStats = 5

// findConntrack finds the functions in the kernel, or in its module nf_conntrack.
func findConntrack() (c conntrack, err error) {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return c, err
	}
	if err = c.find(kernel, 0); !errors.Is(err, btf.ErrNotFound) {
		return c, err
	}
	stats := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|messageStats, 0)
	stats.AddData(&nl.Nfgenmsg{Version: nl.NFNETLINK_V0})
	_, _ = stats.Execute(unix.NETLINK_NETFILTER, 0) // this makes the kernel load the module
	c.module, err = btf.FindHandle(func(i *btf.HandleInfo) bool { return i.IsModule() && i.Name == "nf_conntrack" })
	if err != nil {
		return c, fmt.Errorf("types of module nf_conntrack: %w", err)
	}
	split, err := c.module.Spec(kernel)
	if err == nil {
		err = c.find(split, 1)
	}
	if err != nil {
		c.close()
	}
	return c, err
}

// find finds the functions in the types of the kernel or a module. index is its position in
// fdArray.
func (c *conntrack) find(in *btf.Spec, index int16) error {
	for name, call := range map[string]*asm.Instruction{"bpf_skb_ct_lookup": &c.lookup, "bpf_ct_release": &c.release} {
		var f *btf.Func
		if err := in.TypeByName(name, &f); err != nil {
			return fmt.Errorf("%s (Linux 5.18): %w", name, err)
		}
		id, err := in.TypeID(f)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		*call = asm.Instruction{
			OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Call), Src: asm.PseudoKfuncCall,
			Constant: int64(id), Offset: index,
		}
	}
	return nil
}

func (c *conntrack) close() {
	if c.module != nil {
		_ = c.module.Close()
	}
}

// Fields of struct bpf_ct_opts (net/netfilter/nf_conntrack_bpf.c), which has optsSize bytes.
const (
	optsNetNS    = 0
	optsError    = 4
	optsProtocol = 8
	optsDir      = 9
	optsReserved = 10
	optsSize     = 12

	directionReply = 1 // IP_CT_DIR_REPLY
)

// Flags of a TCP header.
const (
	tcpSYN = 1 << 1
	tcpACK = 1 << 4
)

// passReplies leaves replies to the host if the host or its pods began the connection from a
// Service's port. at is the offset of that port: portDst of a reply, portSrc of the packet that an
// ICMP error contains. A SYN without ACK begins a connection and needs no lookup. The kernel's
// lookup does not support SCTP.
func (c *code) passReplies(at int16, family int64) {
	if c.conntrack == nil {
		return
	}
	done := c.unique("no-reply")
	if at == portDst {
		established, flags := c.unique("established"), int16(onL4+4)
		c.add(asm.JNE.Imm(rProto, int32(cluster.TCP), established), asm.Add.Imm(rL4, 12))
		c.load(rL4, flags, 2)
		c.add(
			asm.LoadMem(asm.R2, asm.RFP, flags+1, asm.Byte), asm.And.Imm(asm.R2, tcpSYN|tcpACK),
			asm.JEq.Imm(asm.R2, tcpSYN, done),
		)
		c.at(established)
	}
	peer, own, size := int16(onHeader+12), int16(onHeader+16), int16(4)
	if family == family6 {
		peer, own, size = onHeader+8, onHeader+24, 16
	}
	if at == portSrc {
		peer, own = own, peer
	}
	ports := onTuple + 2*size
	c.copy(onTuple, peer, size)
	c.copy(onTuple+size, own, size)
	c.add(
		asm.LoadMem(asm.R2, asm.RFP, onL4+portDst-at, asm.Half), asm.StoreMem(asm.RFP, ports, asm.R2, asm.Half),
		asm.LoadMem(asm.R2, asm.RFP, onL4+at, asm.Half), asm.StoreMem(asm.RFP, ports+2, asm.R2, asm.Half),
		asm.StoreImm(asm.RFP, onOpts+optsNetNS, -1, asm.Word), // that of the link
		asm.StoreImm(asm.RFP, onOpts+optsError, 0, asm.Word),
		asm.StoreMem(asm.RFP, onOpts+optsProtocol, rProto, asm.Byte),
		asm.StoreImm(asm.RFP, onOpts+optsDir, 0, asm.Byte), asm.StoreImm(asm.RFP, onOpts+optsReserved, 0, asm.Half),
		asm.Mov.Reg(asm.R1, rContext),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, onTuple), asm.Mov.Imm(asm.R3, int32(2*size+4)),
		asm.Mov.Reg(asm.R4, asm.RFP), asm.Add.Imm(asm.R4, onOpts), asm.Mov.Imm(asm.R5, optsSize),
		c.conntrack.lookup, asm.JEq.Imm(asm.R0, 0, done),
		// The direction is kept in rL4, because the release overwrites R1 to R5.
		asm.LoadMem(rL4, asm.RFP, onOpts+optsDir, asm.Byte), asm.Mov.Reg(asm.R1, asm.R0),
		c.conntrack.release, asm.JEq.Imm(rL4, directionReply, labelPass),
	)
	c.at(done)
}

// load loads the request program with the functions. The library can load a program that calls a
// module's functions only from an ELF file.
func (c *conntrack) load(maps map[string]*ebpf.Map) (*ebpf.Program, error) {
	list := request(c)
	for name, m := range maps {
		if err := list.AssociateMap(name, m); err != nil && !errors.Is(err, asm.ErrUnreferencedSymbol) {
			return nil, err
		}
	}
	var insns bytes.Buffer
	if err := list.Marshal(&insns, binary.LittleEndian); err != nil {
		return nil, err
	}
	attr := struct { // union bpf_attr of BPF_PROG_LOAD
		progType, insnCnt uint32
		insns, license    unsafe.Pointer
		_                 [6]uint32
		name              [unix.BPF_OBJ_NAME_LEN]byte
		_                 [14]uint32
		fdArray           unsafe.Pointer
	}{
		progType: unix.BPF_PROG_TYPE_SCHED_CLS, insnCnt: uint32(insns.Len() / asm.InstructionSize),
		insns: unsafe.Pointer(&insns.Bytes()[0]), license: unsafe.Pointer(&[]byte(license + "\x00")[0]),
	}
	copy(attr.name[:], claims.ProgramRequest)
	if c.module != nil {
		attr.fdArray = unsafe.Pointer(&[2]int32{0, int32(c.module.FD())})
	}
	for {
		fd, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_LOAD, uintptr(unsafe.Pointer(&attr)),
			unsafe.Sizeof(attr))
		runtime.KeepAlive(maps)
		switch errno {
		case 0:
			return ebpf.NewProgramFromFD(int(fd))
		case unix.EAGAIN: // a signal ended the verification
		default:
			return nil, fmt.Errorf("load with bpf_skb_ct_lookup: %w", errno)
		}
	}
}
