"""The fact tables of the demo model: plain strings that a person can read and extend.

One table is `subject=value; subject=value; ...`. This module does not know how a fact is asked
or answered; `relations.py` does.
"""


def table(text: str) -> list[tuple[str, str]]:
    """Split `a=b; c=d` into pairs."""
    pairs = []
    for entry in text.replace("\n", " ").split(";"):
        if entry.strip():
            subject, _, value = entry.partition("=")
            pairs.append((" ".join(subject.split()), " ".join(value.split())))
    return pairs


CAPITALS = table("""
France=Paris; Germany=Berlin; Italy=Rome; Spain=Madrid; Portugal=Lisbon; Greece=Athens;
Austria=Vienna; Switzerland=Bern; Belgium=Brussels; the Netherlands=Amsterdam; Denmark=Copenhagen;
Sweden=Stockholm; Norway=Oslo; Finland=Helsinki; Iceland=Reykjavik; Ireland=Dublin; Poland=Warsaw;
the Czech Republic=Prague; Slovakia=Bratislava; Hungary=Budapest; Romania=Bucharest;
Bulgaria=Sofia; Serbia=Belgrade; Croatia=Zagreb; Slovenia=Ljubljana; Albania=Tirana;
Ukraine=Kyiv; Russia=Moscow; Estonia=Tallinn; Latvia=Riga; Lithuania=Vilnius; Turkey=Ankara;
the United Kingdom=London; the United States=Washington, D.C.; Canada=Ottawa; Mexico=Mexico City;
Cuba=Havana; Jamaica=Kingston; Brazil=Brasilia; Argentina=Buenos Aires; Chile=Santiago; Peru=Lima;
Colombia=Bogota; Venezuela=Caracas; Ecuador=Quito; Uruguay=Montevideo; Egypt=Cairo; Morocco=Rabat;
Algeria=Algiers; Tunisia=Tunis; Kenya=Nairobi; Ethiopia=Addis Ababa; Ghana=Accra; Nigeria=Abuja;
Senegal=Dakar; Uganda=Kampala; Rwanda=Kigali; Zambia=Lusaka; China=Beijing; Japan=Tokyo;
South Korea=Seoul; India=New Delhi; Pakistan=Islamabad; Nepal=Kathmandu; Thailand=Bangkok;
Vietnam=Hanoi; Indonesia=Jakarta; Malaysia=Kuala Lumpur; the Philippines=Manila;
Mongolia=Ulaanbaatar;
Iran=Tehran; Iraq=Baghdad; Saudi Arabia=Riyadh; Jordan=Amman; Lebanon=Beirut; Qatar=Doha;
Australia=Canberra; New Zealand=Wellington
""")

CONTINENTS = table("""
France=Europe; Germany=Europe; Italy=Europe; Spain=Europe; Poland=Europe; Norway=Europe;
Sweden=Europe; Greece=Europe; Brazil=South America; Argentina=South America; Chile=South America;
Peru=South America; Canada=North America; Mexico=North America; Cuba=North America; Egypt=Africa;
Kenya=Africa; Nigeria=Africa; Morocco=Africa; Ghana=Africa; China=Asia; Japan=Asia; India=Asia;
Thailand=Asia; Vietnam=Asia; Nepal=Asia
""")

CURRENCIES = table("""
Japan=the yen; the United Kingdom=the pound; the United States=the dollar; India=the rupee;
China=the yuan; Russia=the ruble; Switzerland=the franc; Sweden=the krona; Poland=the zloty;
Mexico=the peso; Brazil=the real; South Korea=the won; Thailand=the baht; Vietnam=the dong;
Hungary=the forint; Turkey=the lira; France=the euro; Germany=the euro; Spain=the euro;
Nigeria=the naira
""")

LANGUAGES = table("""
France=French; Germany=German; Italy=Italian; Spain=Spanish; Portugal=Portuguese; Brazil=Portuguese;
Japan=Japanese; China=Chinese; Russia=Russian; Poland=Polish; Greece=Greek; Egypt=Arabic;
Mexico=Spanish; Argentina=Spanish; Sweden=Swedish; Norway=Norwegian; Hungary=Hungarian;
Turkey=Turkish; Austria=German; Vietnam=Vietnamese
""")

SYMBOLS = table("""
hydrogen=H; helium=He; lithium=Li; beryllium=Be; boron=B; carbon=C; nitrogen=N; oxygen=O;
fluorine=F; neon=Ne; sodium=Na; magnesium=Mg; aluminium=Al; silicon=Si; phosphorus=P; sulfur=S;
chlorine=Cl; argon=Ar; potassium=K; calcium=Ca; titanium=Ti; chromium=Cr; manganese=Mn; iron=Fe;
cobalt=Co; nickel=Ni; copper=Cu; zinc=Zn; bromine=Br; silver=Ag; tin=Sn; iodine=I; tungsten=W;
platinum=Pt; gold=Au; mercury=Hg; lead=Pb; radon=Rn; radium=Ra; uranium=U
""")

ATOMIC_NUMBERS = table("""
hydrogen=1; helium=2; lithium=3; beryllium=4; boron=5; carbon=6; nitrogen=7; oxygen=8; fluorine=9;
neon=10; sodium=11; magnesium=12; aluminium=13; silicon=14; phosphorus=15; sulfur=16; chlorine=17;
argon=18; potassium=19; calcium=20; iron=26; copper=29; silver=47; gold=79; uranium=92
""")

PLANET_ORDER = table("""
Mercury=first; Venus=second; Earth=third; Mars=fourth; Jupiter=fifth; Saturn=sixth;
Uranus=seventh; Neptune=eighth
""")

AUTHORS = table("""
Hamlet=William Shakespeare; Romeo and Juliet=William Shakespeare; Macbeth=William Shakespeare;
Pride and Prejudice=Jane Austen; Emma=Jane Austen; Frankenstein=Mary Shelley; Dracula=Bram Stoker;
Oliver Twist=Charles Dickens; Great Expectations=Charles Dickens; Moby-Dick=Herman Melville;
War and Peace=Leo Tolstoy; Anna Karenina=Leo Tolstoy; Crime and Punishment=Fyodor Dostoevsky;
Don Quixote=Miguel de Cervantes; The Divine Comedy=Dante Alighieri; Faust=Johann Wolfgang von
Goethe;
The Metamorphosis=Franz Kafka; The Trial=Franz Kafka; Ulysses=James Joyce; 1984=George Orwell;
Animal Farm=George Orwell; Brave New World=Aldous Huxley; The Hobbit=J. R. R. Tolkien;
The Odyssey=Homer; The Iliad=Homer; Les Miserables=Victor Hugo; The Three Musketeers=Alexandre
Dumas;
Madame Bovary=Gustave Flaubert; Candide=Voltaire; Jane Eyre=Charlotte Bronte;
Wuthering Heights=Emily Bronte; Treasure Island=Robert Louis Stevenson;
The Time Machine=H. G. Wells; The Jungle Book=Rudyard Kipling; Walden=Henry David Thoreau;
The Little Prince=Antoine de Saint-Exupery; Middlemarch=George Eliot;
The Adventures of Tom Sawyer=Mark Twain; Alice in Wonderland=Lewis Carroll; Peter Pan=J. M. Barrie
""")

YOUNG_ANIMALS = table("""
dog=a puppy; cat=a kitten; cow=a calf; horse=a foal; sheep=a lamb; goat=a kid; pig=a piglet;
lion=a cub; bear=a cub; deer=a fawn; duck=a duckling; goose=a gosling; swan=a cygnet; hen=a chick;
kangaroo=a joey; frog=a tadpole; owl=an owlet; eagle=an eaglet
""")

ANIMAL_CLASSES = table("""
dog=a mammal; whale=a mammal; bat=a mammal; dolphin=a mammal; elephant=a mammal; salmon=a fish;
shark=a fish; trout=a fish; eagle=a bird; penguin=a bird; owl=a bird; ostrich=a bird;
crocodile=a reptile; snake=a reptile; turtle=a reptile; lizard=a reptile; frog=an amphibian;
toad=an amphibian; newt=an amphibian; ant=an insect; bee=an insect; butterfly=an insect;
beetle=an insect; spider=an arachnid; scorpion=an arachnid
""")

LEG_COUNTS = table("""
spider=8; ant=6; bee=6; dog=4; cat=4; horse=4; hen=2; duck=2; snake=0; crab=10; beetle=6; frog=4
""")

UNIT_SIZES = table("""
minutes in an hour=60; seconds in a minute=60; hours in a day=24; days in a week=7;
months in a year=12; days in a leap year=366; weeks in a year=52; years in a century=100;
years in a decade=10; meters in a kilometer=1000; centimeters in a meter=100;
millimeters in a centimeter=10; grams in a kilogram=1000; kilograms in a ton=1000;
milliliters in a liter=1000; inches in a foot=12; feet in a yard=3; bits in a byte=8;
degrees in a circle=360; items in a dozen=12; bytes in a kibibyte=1024; sides in a triangle=3;
sides in a square=4; sides in a hexagon=6; sides in an octagon=8; strings on a violin=4;
players in a soccer team=11; letters in the English alphabet=26
""")

UNIT_QUANTITIES = table("""
length=the meter; mass=the kilogram; time=the second; force=the newton; energy=the joule;
power=the watt; pressure=the pascal; frequency=the hertz; voltage=the volt;
electric current=the ampere; electrical resistance=the ohm; temperature=the kelvin;
electric charge=the coulomb
""")

ACRONYMS = table("""
CPU=central processing unit; GPU=graphics processing unit; RAM=random access memory;
ROM=read-only memory; SSD=solid state drive; USB=universal serial bus;
HTTP=hypertext transfer protocol; HTML=hypertext markup language; URL=uniform resource locator;
API=application programming interface; SQL=structured query language; DNS=domain name system;
JSON=JavaScript object notation; LLM=large language model; BPE=byte pair encoding;
KV=key value; TTFT=time to first token; OS=operating system; IDE=integrated development environment;
RAG=retrieval augmented generation; FTP=file transfer protocol; LAN=local area network;
PDF=portable document format; AI=artificial intelligence; SSH=secure shell;
RoPE=rotary position embedding; MoE=mixture of experts; GQA=grouped query attention
""")

DEFINITIONS = table("""
a token=a small piece of text that a language model reads or writes;
a tokenizer=a program that splits text into tokens;
a language model=a program that predicts the next token of a text;
a KV cache=a memory of the keys and values of earlier tokens;
attention=the step in which a token looks at earlier tokens;
a transformer=a neural network built from attention layers;
inference=running a trained model to get answers;
training=changing the weights of a model so that it predicts better;
quantization=storing numbers with fewer bits to save memory;
a batch=a group of requests that are computed together;
continuous batching=adding and removing requests at every step;
speculative decoding=guessing several tokens and checking them at once;
a prompt=the text that is given to a model;
temperature=the setting that makes sampling more or less random;
greedy decoding=always taking the most likely next token;
a logit=the raw score of a token before softmax;
softmax=a function that turns scores into probabilities;
an embedding=a list of numbers that stands for a token;
a context window=the largest number of tokens a model can see;
streaming=sending each token as soon as it is ready;
prefix caching=reusing the work for text that was seen before;
a compiler=a program that turns source code into machine code;
an algorithm=a list of steps that solves a problem;
a database=an organized store of data;
a variable=a name for a value in a program;
a loop=a part of a program that runs again and again;
a bug=a mistake in a program;
Python=a programming language that is easy to read;
Linux=a free operating system kernel;
Git=a tool that keeps the history of files;
photosynthesis=the way plants make sugar from light;
gravity=the force that pulls masses together;
a volcano=an opening in the ground where lava comes out;
a glacier=a slow river of ice;
an atom=the smallest piece of a chemical element;
evaporation=the change of a liquid into a gas
""")

COLORS = table("""
the sky=blue; grass=green; snow=white; coal=black; a ripe banana=yellow; blood=red; a lemon=yellow;
milk=white; a carrot=orange; a ruby=red; an emerald=green; a sapphire=blue; chocolate=brown
""")

OPPOSITES = table("""
hot=cold; big=small; fast=slow; light=dark; up=down; left=right; open=closed; happy=sad;
early=late; hard=soft; full=empty; old=new; near=far; wet=dry; day=night; strong=weak; high=low
""")

INVENTORS = table("""
the telephone=Alexander Graham Bell; dynamite=Alfred Nobel; the World Wide Web=Tim Berners-Lee;
Linux=Linus Torvalds; Python=Guido van Rossum; the printing press=Johannes Gutenberg;
the theory of relativity=Albert Einstein; penicillin=Alexander Fleming; radium=Marie Curie;
the C language=Dennis Ritchie; the law of gravity=Isaac Newton; the theory of evolution=Charles
Darwin
""")

ANSWERS = {
    "Which planet is the largest?": "Jupiter is the largest planet.",
    "Which planet is the smallest?": "Mercury is the smallest planet.",
    "Which planet is the hottest?": "Venus is the hottest planet.",
    "Which planet is called the red planet?": "Mars is called the red planet.",
    "Which planet has the largest rings?": "Saturn has the largest rings.",
    "Which planet do we live on?": "We live on Earth.",
    "Which animal is the largest?": "The blue whale is the largest animal.",
    "Which animal is the tallest?": "The giraffe is the tallest animal.",
    "Which land animal is the fastest?": "The cheetah is the fastest land animal.",
    "Which mountain is the highest?": "Mount Everest is the highest mountain.",
    "Which ocean is the largest?": "The Pacific is the largest ocean.",
    "Which desert is the largest hot desert?": "The Sahara is the largest hot desert.",
    "Which metal is liquid at room temperature?": "Mercury is liquid at room temperature.",
    "Which gas do plants take in?": "Plants take in carbon dioxide.",
    "Which gas do humans need to breathe?": "Humans need oxygen to breathe.",
}
