#!/usr/bin/env python3
"""Checks compiled kernels: nothing writes to registers that a matrix product under way still reads.

    product_registers.py OBJECT...     objects of nvcc for sm_90, or cubins
    product_registers.py --self-test

wgmma takes operand A from registers, and reads them when its turn comes. PTX leaves it to the program not to touch them
before the product was waited for, and ptxas gives such registers away all the same where it sees no later use: then sums
are wrong now and then, or always. No test on a GPU finds that reliably, and no compiler says it; the machine code shows it.

Instructions are 16 bytes, as ptxas 13.0 encodes them for sm_90. Prints each such write; exits with 1 if there is any, or
if a file has no products at all."""
import re
import struct
import subprocess
import sys
from collections import deque

CUDA_MACHINE = 190  # Of an ELF file.
ALL = 0xff  # RZ, as a register.

# Opcodes, without the bits that tell forms of operands.
HGMMA, IGMMA, WARPGROUP, BRANCH, EXIT, LDG, LDS, IMAD_WIDE, CS2R = 0x1f0, 0x1f1, 0x1c5, 0x147, 0x14d, 0x181, 0x184, 0x25, 0x5
RETURN = 0x150
PRODUCTS = (HGMMA, IGMMA)  # Of bf16 and of 8-bit integers.
# Have no register as their destination: stores, copies to shared memory, barriers, fences, comparisons, and what writes
# uniform registers.
WITHOUT = {0x186, 0x188, 0x187, 0x1ae, 0x1a1, 0x192, 0x18e, 0x18f, 0x198, 0x147, 0x14d, 0x150, 0x146, 0x145, 0x141, 0x148, 0x11d,
           0x11a, 0x1af, 0x118, 0x1c6, 0x1c5, 0x1c7, 0x1ab, 0x00c, 0x00b, 0x01c, 0x02a, 0x0ca, 0x1c2, 0x1ca, 0x1c3, 0x082, 0x090,
           0x092, 0x091, 0x099, 0x0b9, 0x0a4, 0x08c, 0x087, 0x0b8, 0x0bd, 0x083, 0x086, 0x1b9, 0x1bd}
WIDTHS = {4: 1, 5: 2, 6: 4}  # Registers of a load, by its size field.


class Instruction:

    def __init__(self, low, high):
        self.low, self.high = low, high
        self.op = low & 0x1ff
        self.always = low >> 12 & 15 == 7  # No predicate.

    def reads_a(self):
        """Registers of operand A, if it is a product that takes it from registers."""
        if self.op not in PRODUCTS or self.low >> 9 & 7 != 6:
            return frozenset()
        first = self.low >> 24 & 0xff
        return frozenset() if first == ALL else frozenset(range(first, first + 4))

    def ends_group(self):
        return self.op in PRODUCTS and self.high >> 16 & 0x70 == 0

    def waits(self):
        """How many groups of products may still be under way, or None if it is no wait."""
        if self.op != WARPGROUP or self.low >> 32 & 0x8000 == 0:
            return None
        return self.high >> 8 & 7

    def writes(self):
        if self.op in WITHOUT or self.op in PRODUCTS:
            return frozenset()
        first = self.low >> 16 & 0xff
        if first == ALL:
            return frozenset()
        width = 1
        if self.op in (LDG, LDS):
            width = WIDTHS.get(self.high >> 9 & 7, 1)
        elif self.op in (IMAD_WIDE, CS2R):
            width = 2
        return frozenset(range(first, first + width))

    def target(self, at):
        """Index of the instruction that a branch at index `at` goes to."""
        offset = (self.high << 64 | self.low) >> 34 & (1 << 48) - 1
        if offset >> 47:
            offset -= 1 << 48
        return at + 1 + (offset * 256 + (self.low >> 16 & 0xff)) * 4 // 16


# What is under way: registers of the group that is still open, and of closed ones, the newest first.
def merged(a, b):
    if a is None:
        return b
    groups = [set(), set(), set(), set()]
    for state in (a[1], b[1]):
        for i, group in enumerate(state):
            groups[i] |= group
    while groups and not groups[-1]:
        groups.pop()
    return a[0] | b[0], tuple(frozenset(group) for group in groups)


def after(instruction, state):
    still_open, groups = state
    if instruction.op in PRODUCTS:
        still_open |= instruction.reads_a()
        if instruction.ends_group():
            oldest = frozenset().union(*groups[3:])
            groups = ((still_open, ) + groups[:2] + ((groups[2] | oldest, ) if len(groups) > 2 else ()))
            still_open = frozenset()
    elif instruction.waits() is not None:
        groups = groups[:instruction.waits()]
    return still_open, groups


def hazards(code):
    """Pairs of index and registers, of instructions that write what products under way read."""
    instructions = [Instruction(*struct.unpack_from('<QQ', code, at)) for at in range(0, len(code), 16)]
    states = [None] * len(instructions)
    states[0] = (frozenset(), ())
    found = {}
    todo = deque([0])
    while todo:
        at = todo.popleft()
        instruction, state = instructions[at], states[at]
        touched = instruction.writes() & frozenset().union(state[0], *state[1])
        if touched:
            found[at] = touched
        following = []
        if instruction.op == BRANCH:
            following.append(instruction.target(at))
        if not (instruction.op in (BRANCH, EXIT, RETURN) and instruction.always):
            following.append(at + 1)
        state = after(instruction, state)
        for to in following:
            if not 0 <= to < len(instructions):
                continue
            joined = merged(states[to], state)
            if joined != states[to]:
                states[to] = joined
                todo.append(to)
    return sorted(found.items()), sum(1 for i in instructions if i.op in PRODUCTS)


def kernels(path):
    """Names and machine code of the kernels in a file."""
    data = open(path, 'rb').read()
    for start in (match.start() for match in re.finditer(b'\x7fELF', data)):
        elf = data[start:]
        if struct.unpack_from('<H', elf, 18)[0] != CUDA_MACHINE:
            continue
        table, count, names = (struct.unpack_from('<Q', elf, 40)[0], *struct.unpack_from('<HH', elf, 60))
        sections = [struct.unpack_from('<IIQQQQ', elf, table + 64 * i) for i in range(count)]
        for name, _, _, _, offset, size in sections:
            begin = sections[names][4] + name
            text = elf[begin:elf.index(b'\0', begin)].decode()
            if text.startswith('.text.'):
                yield text[6:], elf[offset:offset + size]


def check(paths):
    bad = products = 0
    for path in paths:
        for name, code in kernels(path):
            found, count = hazards(code)
            products += count
            if not found:
                continue
            bad += 1
            readable = subprocess.run(['c++filt', name], capture_output=True, text=True, check=True).stdout.strip()
            print(f'{readable}: registers of a product under way are written at')
            for at, registers in found[:8]:
                print(f'  {16 * at:#x}: {", ".join(f"R{r}" for r in sorted(registers))}')
    if products == 0:
        print('no matrix products were found: is this what nvcc made for sm_90?')
        return 1
    print(f'{products} products, {bad} kernels that write what they read')
    return 1 if bad else 0


def self_test():
    product, ends = 0x00e0000838187df0, 0x000fe20008001818  # A: R56 to R59; the last of its group.
    load, store = 0x0040000608387981, 0x0000000408387986  # To R56, 16 bytes; from R56.
    wait, done = (0x00008000000079c5, 0x10000), (0x000000000000794d, 0)
    wait_for_older = (0x00008000000079c5, 0x10100)
    loads = (load, 0x0003580000000d00)

    def found(*instructions):
        return hazards(b''.join(struct.pack('<QQ', *i) for i in instructions))[0]

    assert found((product, ends), wait, loads, done) == []
    assert [at for at, _ in found((product, ends), loads, wait, done)] == [1]
    assert found((product, ends), (store, 0), wait, done) == []
    assert [at for at, _ in found((product, ends), wait_for_older, loads, done)] == [2]
    integers = product | 1  # The same of 8-bit integers.
    assert [at for at, _ in found((integers, ends), loads, wait, done)] == [1]
    other = (product & ~(0xff << 24) | 80 << 24, ends)  # A: R80 to R83.
    assert found((product, ends), other, wait_for_older, loads, done) == []
    # Round a loop: the load comes before the product, and again while it is under way.
    jump = 0xf47947 | (1 << 48) - 1 << 34  # To the instruction two before.
    again = (jump & (1 << 64) - 1, jump >> 64)
    assert [at for at, _ in found(loads, (product, ends), again, done)] == [0]
    print('product_registers.py finds what it should')
    return 0


if __name__ == '__main__':
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(self_test() if sys.argv[1] == '--self-test' else check(sys.argv[1:]))
