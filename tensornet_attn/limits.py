"""All limits on inputs. A design file is untrusted data."""

# A file
FILE_BYTES = 256 * 1024
YAML_DEPTH = 32
YAML_NODES = 20_000
EXTENDS_DEPTH = 16

# A design
LEGS = 256
TENSORS = 1_000  # tensors and steps together; settings as well
NAME_LENGTH = 64
EXPRESSION_LENGTH = 4_000
EXPRESSION_DEPTH = 32
EXPRESSION_OPERATORS = 128
TERMS = 64  # terms of one sum
FACTORS = 32  # tensors of one product
PRODUCT_LEGS = 40  # distinct legs of one product, batch not counted
TENSOR_LEGS = 24
LAYERS = 1_000  # in one stack of a model
PROBLEMS = 100  # problems reported for one file
FILES = 1_000  # compared with the name of a missing file

# Numbers
INTEGER_BITS = 256  # of any intermediate result of leg arithmetic
SIZE = 2**31 - 1  # of one leg
ELEMENTS = 2**34  # of one weight, constant or state: 64 GiB in float32
TOTAL_ELEMENTS = 2**36

# Work
CANONICAL_LEAVES = 256  # complete labellings tried for one canonical form
CANONICAL_DEPTH = 100  # nested choices of one labelling; Python's recursion limit is not much higher
SEEN = 64  # sets of visible pairs tracked for one step; above this, all its pairs count as visible
AREAS = 8  # areas stored for one formula of masks; above this, one bounding area replaces them
ORDER_FACTORS = 12  # tensors of a product; above this, the search for a contraction order is greedy
ORDER_TRIALS = 64  # of the random greedy search
